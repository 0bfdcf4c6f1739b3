"""The transport by httpx keeps the promises of our own, and speaks HTTP/2."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from http_servers import Request, Server, failing, serving

from fanfold import __version__
from fanfold.errors import ConfigError
from fanfold.models import model
from fanfold.models.http_by_httpx import Httpx

h2_connection = pytest.importorskip("h2.connection", reason="needs pip install 'fanfold[httpx]'")
h2_events = pytest.importorskip("h2.events")

GREETING = b'{"choices": [{"message": {"content": "Hi"}}]}'


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    command += f" -addext subjectAltName=DNS:localhost -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


def test_a_model_is_asked_by_httpx_over_http_2(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    tls.set_alpn_protocols(["h2"])
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate[0]))
    heard: list[dict[bytes, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h2_connection.H2Connection(h2_connection.H2Configuration(client_side=False))
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        while data := await reader.read(65536):
            for event in connection.receive_data(data):
                if isinstance(event, h2_events.RequestReceived):
                    heard.append({bytes(name): bytes(value) for name, value in event.headers})
                if isinstance(event, h2_events.StreamEnded):
                    connection.send_headers(event.stream_id, [(":status", "200"), ("x-id", "7")])
                    connection.send_data(event.stream_id, GREETING, end_stream=True)
            writer.write(connection.data_to_send())
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        asked = model("m", base_url=f"https://localhost:{port}/v1", key="key-of-h2-server", transport="httpx")
        texts = [reply.text for reply in await asyncio.gather(*(asked.generate(f"Hello {n}") for n in range(20)))]
        assert texts == ["Hi"] * 20 and len(heard) == 20
        assert heard[0][b":path"] == b"/v1/chat/completions"
        assert heard[0][b"user-agent"] == f"fanfold/{__version__}".encode()
        assert heard[0][b"accept-encoding"] == b"gzip"
        assert heard[0][b"authorization"] == b"Bearer key-of-h2-server"
        server.close()

    asyncio.run(main())


def test_failures_have_the_kinds_of_our_own_client(certificate: tuple[Path, Path]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)

    async def main() -> None:
        small = Httpx(max_bytes=10)
        endless = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"6\r\n123456\r\n" * 2
        async with (
            serving(Request.hang) as silent,
            serving(lambda r: r.reply(b"x" * 11)) as large,
            serving(lambda r: r.send(endless)) as unannounced,
        ):
            error = await failing(small.request("GET", unannounced.url, {}, deadline=5))
            assert (error.kind, error.sent) == ("too-large", True)
            failures = {
                "connect": (f"http://127.0.0.1:{port}/", False),
                "dns": ("http://nobody.invalid/", False),
                "timeout": (silent.url, True),
                "too-large": (large.url, True),
            }
            for kind, (url, sent) in failures.items():
                error = await failing(small.request("POST", url + "?key=secret-7", {}, b"{}", deadline=0.5))
                assert (error.kind, error.sent) == (kind, sent), error
                assert str(error).startswith("POST http://") and "secret-7" not in str(error)
        async with serving(tls=tls) as server:
            error = await failing(small.request("GET", f"https://localhost:{server.port}/", {}))
            assert (error.kind, error.sent, server.requests) == ("certificate", False, [])
        await small.close()

    asyncio.run(main())


def test_a_download_goes_to_its_sink_and_a_unix_socket_is_an_address(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(lambda r: r.reply(b"content", "200 OK" if r.target == "/file" else "404 Not Found"))
        listener = await asyncio.start_unix_server(server.serve, tmp_path / "s.sock")
        transport, pieces = Httpx(), list[bytes]()
        found = await transport.download(f"unix://{tmp_path}/s.sock:/file", {}, pieces.append)
        missing = await transport.download(f"unix://{tmp_path}/s.sock:/none", {}, pieces.append)
        assert (found.status, found.body, b"".join(pieces)) == (200, b"", b"content")
        assert (missing.status, missing.body, len(pieces)) == (404, b"content", 1)
        await transport.close()
        listener.close()

    asyncio.run(main())


def test_a_reply_is_streamed_as_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        seen = asyncio.Event()

        async def answer(request: Request) -> bool:
            event = 'data: {"choices": [{"delta": {"content": "%s"}, "finish_reason": %s}]}\n\n'
            await request.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
            await request.send((event % ("Hi", "null")).encode())
            await seen.wait()
            await request.send((event % ("!", '"stop"') + "data: [DONE]\n\n").encode())
            return False

        async with serving(answer) as server:
            table = f'[mine]\nmodel = "openai-compatible/m"\nbase_url = "{server.url}/v1"\ntransport = "httpx"\n'
            (tmp_path / "models.toml").write_text(table)
            monkeypatch.chdir(tmp_path)
            asked = model("mine")
            assert asked.connect is Httpx
            pieces = []
            async with asyncio.timeout(10):
                async for piece in asked.stream("Hello"):
                    pieces.append(piece)
                    seen.set()
            assert pieces == ["Hi", "!"]

    asyncio.run(main())


def test_a_header_that_cannot_be_sent_is_refused_without_its_value() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match="the value of header 'x-key' holds a line break") as caught:
            await Httpx().request("GET", "http://127.0.0.1:1/", {"x-key": "sk-9\n"})
        assert "sk-9" not in str(caught.value)

    asyncio.run(main())


def test_a_transport_that_cannot_be_used_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no transport 'htpx'; did you mean 'httpx'"):
        model("m", base_url="http://127.0.0.1:1/v1", transport="htpx")
    with pytest.raises(ConfigError, match="for models behind HTTP"):
        model("simulated/gpt-6-luna", transport="httpx")
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(ConfigError, match=r"pip install 'fanfold\[httpx\]'"):
        model("m", base_url="http://127.0.0.1:1/v1", transport="httpx")
