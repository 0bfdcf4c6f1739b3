"""The model of the prompt benchmark: counts every call, answers equal ones from a file, speaks HTTP to peers.

It is the local model, or the same weights behind any server that speaks OpenAI's protocol, which a GPU makes fast.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import json
import sqlite3
import threading
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import fanfold.models
from fanfold.models import Model, model
from fanfold.models.http_exchange import Response
from fanfold.models.local import MAX_TOKENS, LocalTransport
from fanfold.models.transport import Transport
from fanfold.tasks import Grader, Problem

LOCAL = "local/smollm2"
#: The code that decides what the local model answers.
ENGINE = [Path(fanfold.models.__file__).with_name(name) for name in ("local.py", "llama.py")]


def version_of(files: Sequence[Path]) -> str:
    """A hash of what files do: of Python without comments and docstrings, of anything else as it is."""
    digest = hashlib.sha256()
    for file in sorted(files):
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".py":
            tree = ast.parse(text)
            for node in ast.walk(tree):
                body = getattr(node, "body", None)
                said = isinstance(body, list) and body and isinstance(body[0], ast.Expr)
                if said and isinstance(body[0].value, ast.Constant):
                    del body[0]
            text = ast.unparse(tree)
        digest.update(text.encode())
    return digest.hexdigest()[:12]


#: The answer to the body of a request, within so many seconds where that is said.
Asked: TypeAlias = Callable[[bytes, float | None], Awaitable[Response]]


def asked_here() -> Asked:
    """The local model."""
    local = LocalTransport.of(LOCAL.partition("/")[2])
    return lambda body, deadline: local.request("POST", "", {}, body, deadline=deadline)


def asked_at(address: str) -> Asked:
    """The weights of the local model behind a server; usable from any event loop."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask(body: bytes) -> Response:
        asked = json.loads(body)
        path = "chat/completions" if "messages" in asked else "completions"
        asked |= {"model": LOCAL.partition("/")[2], "max_tokens": asked.get("max_tokens") or MAX_TOKENS}
        request = urllib.request.Request(
            f"{address.rstrip('/')}/{path}", json.dumps(asked).encode(), {"content-type": "application/json"}
        )
        with direct.open(request, timeout=600) as response:
            return Response(200, {}, response.read())

    return lambda body, _: asyncio.to_thread(ask, body)


class CountedModel(Transport):
    """The model behind a counter; a reply that the file has is not computed again, but counts like any other.

    So a benchmark that was interrupted, or a search that was changed, pays only for requests that nobody has made
    before, and every method is answered the same.  Replies of another version of the local model are not used.
    """

    def __init__(self, file: Path, server: str | None = None) -> None:
        self.calls = 0
        self._seen: Counter[str] = Counter()
        self._ask = asked_at(server) if server else asked_here()
        self._version = "served" if server else version_of(ENGINE)
        self._lock = threading.Lock()
        self._replies = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._replies.execute("PRAGMA journal_mode = wal")
        self._replies.execute("CREATE TABLE IF NOT EXISTS replies (key TEXT PRIMARY KEY, reply BLOB)")

    def begin(self) -> None:
        """Count from zero: the next job begins."""
        self.calls = 0
        self._seen.clear()

    async def request(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
        *,
        deadline: float | None = None,
        replay: bool = True,
    ) -> Response:
        asked: dict[str, Any] = {**json.loads(body or b"{}"), "model": ""}
        if asked.get("temperature"):  # equal requests want different answers, the same ones in every repeat
            plain = json.dumps(asked, sort_keys=True)
            asked["seed"] = self._seen[plain]
            self._seen[plain] += 1
        self.calls += 1
        text = json.dumps(asked, sort_keys=True)
        key = hashlib.sha256(f"{self._version} {text}".encode()).hexdigest()
        with self._lock:
            known = self._replies.execute("SELECT reply FROM replies WHERE key = ?", (key,)).fetchone()
        if known:
            return Response(200, {}, known[0])
        response = await self._ask(text.encode(), deadline)
        if response.status == 200:
            with self._lock:
                self._replies.execute("INSERT OR REPLACE INTO replies VALUES (?, ?)", (key, response.body))
        return response

    def model(self, _: str = LOCAL) -> Model:
        """The model as a study asks it: a completion model, as the shell has it, that is counted."""
        return replace(model(LOCAL), connect=lambda: self)


@contextmanager
def served(counted: CountedModel, grader: Grader, problems: Sequence[Problem]) -> Iterator[str]:
    """The address where peers reach the model by OpenAI's protocol, and the task's grader under `/grade`."""
    known = {problem.input: problem for problem in problems}

    async def answer(path: str, body: bytes) -> Response:
        if not path.endswith("/grade"):
            return await counted.request("POST", path, {}, body)
        asked = json.loads(body)
        grade = await grader(asked["reply"], known[asked["input"]])
        return Response(200, {}, json.dumps({"score": grade.score}).encode())

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            try:
                response = asyncio.run_coroutine_threadsafe(answer(self.path, body), loop).result()
                status, content = response.status, response.body
            except Exception as error:
                status, content = 400, json.dumps({"error": {"message": str(error)}}).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the counter is the record."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        loop.call_soon_threadsafe(loop.stop)
