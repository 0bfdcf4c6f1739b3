"""Who gets in: nobody without the token, no page of another origin, no other host; and what no answer ever holds."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import TOKEN, Asker, asking
from click.testing import CliRunner

from fanfold import Study, Sweep
from fanfold.cli import cli

SECRET = "sk-very-secret-indeed"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    folder = tmp_path_factory.mktemp("security")
    (folder / "secret.txt").write_text(SECRET)
    study = Study(Sweep([{"prompt": f"key {SECRET}"}, {"prompt": "b"}]), lambda candidate, case: 1.0)
    study.run(ledger=folder / "runs.db", run="it", executor="inline").ledger.close()
    with asking(folder / "runs.db") as asker:
        yield asker


PATHS = [
    *("/api/runs", "/api/run/0/it", "/api/run/0/it/trials", "/api/run/0/it/trial/0", "/api/run/0/it/cell/0/0"),
    *("/api/run/0/it/matrix", "/api/run/0/it/tile", "/api/run/0/it/work", "/api/search?q=it", "/metrics"),
    *("/api/events", "/api/events?run=0/it", "/api/run/0/it/file/abc", "/api/compare?run=0/it&run=0/it"),
]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_read_without_the_token(server: Asker, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": f"fanfold={TOKEN}"}, {"authorization": TOKEN}):
        status, _, body = server.ask(path, headers=headers)
        assert status == 401 and b"prompt" not in body and TOKEN.encode() not in body
    assert server.ask(f"{path}{'&' if '?' in path else '?'}token={TOKEN}", headers={})[0] == 401, "not in addresses"


@pytest.mark.parametrize("what", ["stop", "resume", "budget", "note", "feedback"])
def test_nothing_is_done_without_the_token(server: Asker, what: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": f"fanfold={TOKEN}"}):
        assert server.ask(f"/api/run/0/it/{what}", "POST", {"text": "x"}, headers=headers)[0] == 401


@pytest.mark.parametrize("path", ["/", "/app.js", *PATHS[:4]])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "", "localhost.", "0.0.0.0", "[::2]"])
def test_a_forged_host_is_refused(server: Asker, path: str, host: str) -> None:
    connection = http.client.HTTPConnection(server.host, timeout=10)
    connection.putrequest("GET", path, skip_host=True)
    connection.putheader("Host", host)
    connection.putheader("Authorization", f"Bearer {TOKEN}")
    connection.endheaders()
    assert connection.getresponse().status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://{host}", "http://localhost:1", "file://"])
def test_a_forged_origin_is_refused(server: Asker, origin: str) -> None:
    headers = {**server.headers, "origin": origin.format(host=server.host), "content-type": "application/json"}
    status, answer, _ = server.ask("/api/run/0/it/note", "POST", {"text": "forged"}, headers=headers)
    assert status == 403 and "access-control-allow-origin" not in answer
    assert server.ask("/api/runs", headers=headers)[0] == 403
    assert "forged" not in json.dumps(server.get("/api/run/0/it"))


def test_a_form_of_another_page_cannot_do_anything(server: Asker) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        headers = {**server.headers, "content-type": kind}
        assert server.ask("/api/run/0/it/note", "POST", b'{"text": "x"}', headers=headers)[0] == 415
    headers = {**server.headers, "content-type": "application/json", "sec-fetch-site": "cross-site"}
    assert server.ask("/api/run/0/it/note", "POST", {"text": "x"}, headers=headers)[0] == 403
    assert server.ask("/api/run/0/it", "OPTIONS")[0] == server.ask("/api/run/0/it", "DELETE")[0] == 405


def test_the_token_is_traded_for_a_cookie_that_scripts_cannot_read(server: Asker) -> None:
    own = {"origin": f"http://{server.host}", "content-type": "application/json"}
    assert server.ask("/api/enter", "POST", {"token": "wrong"}, headers=own)[0] == 401
    assert server.ask("/api/enter", "POST", {"token": None}, headers=own)[0] == 401
    status, headers, body = server.ask("/api/enter", "POST", {"token": TOKEN}, headers=own)
    cookie = headers["set-cookie"]
    assert status == 200 and "HttpOnly" in cookie and "SameSite=Strict" in cookie and TOKEN.encode() not in body
    assert server.ask("/api/runs", headers={"cookie": cookie.partition(";")[0]})[0] == 200


@pytest.mark.parametrize("path", ["/", "/app.js", "/nothing", "/api/runs", "/api/run/9/x", "/api/run/0/it/tile"])
def test_every_answer_forbids_what_a_page_does_not_need(server: Asker, path: str) -> None:
    _, headers, _ = server.ask(path)
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not any(name.startswith("access-control") for name in headers)


@pytest.mark.parametrize(
    "path",
    [
        *("/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/secret.txt", "//etc/passwd", "/app.js/../../saved.py"),
        *("/static/app.js", "/index.html%00.js", "/api/run/0/..%2f..%2fsecret.txt", "/api/run/0/it/file/..%2f..%2fx"),
        *("/api/run/-1/it", "/api/run/0/../1/it", "/api/run/999999999999999999999/it", "/api/run/0/it/trial/-1"),
        *("/api/run/0/it/trial/9999999999999999999999", "/api/run/0/it/cell/0/-1", "/api/run/0/it/trials?after=1,2"),
        *("/api/run/0/it/trials?after=nan,nan,nan", "/api/run/0/it/text?trials=" + "1," * 5000),
        *("/api/run/0/it'%20OR%201=1--", "/api/run/0/%00", "/api/run/0/" + "x" * 5000, "/api/events?run=0/nothing%00"),
        *(
            "/api/events?run=x/it",
            "/api/events?run=0/it&mark=-1e9",
            "/api/run/0/it/tile?level=-1",
            "/api/compare?run=x",
        ),
    ],
)
def test_odd_paths_lead_nowhere(server: Asker, path: str) -> None:
    status, _, body = server.ask(path)
    assert status in (400, 401, 403, 404) or (status == 200 and b'"texts"' in body), (status, body)
    assert SECRET.encode() not in body and b"Traceback" not in body and b"root:" not in body
    assert server.get("/api/runs")["runs"], "and the server is well"


def test_huge_and_broken_bodies_are_refused(server: Asker) -> None:
    assert server.ask("/api/run/0/it/note", "POST", b'{"text": "' + b"x" * 200_000 + b'"}')[0] == 413
    for body in (b"{", b"[1]", b"null", b"\xff\xfe", b'{"text": ' * 2000, b""):
        assert server.ask("/api/run/0/it/note", "POST", body)[0] == 400
    host, _, port = server.host.partition(":")
    for data in (
        b"\x16\x03\x01nonsense\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            raw.sendall(data)
            assert raw.recv(100).startswith(b"HTTP/1.1 4")
    assert server.get("/api/runs")["runs"], "and the server is well"


def test_a_known_key_is_in_no_answer(server: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    from fanfold import redaction

    paths = (
        "/api/run/0/it/trials?q=k",
        "/api/run/0/it/trial/0?after=-1",
        "/api/run/0/it/text?trials=0",
        "/api/search?q=key",
    )
    for name, nothing in {"_known": set[str](), "_forms": (), "_raw": ()}.items():  # whatever other tests have told it
        monkeypatch.setattr(redaction, name, nothing)
    assert all(SECRET.encode() in server.ask(path)[2] for path in paths), "it is there"
    monkeypatch.setattr(redaction, "_known", {SECRET})
    monkeypatch.setattr(redaction, "_forms", (SECRET,))
    monkeypatch.setattr(redaction, "_raw", (SECRET.encode(),))
    for path in paths:
        body = server.ask(path)[2]
        assert SECRET.encode() not in body and b"***" in body
    with server.events("/api/events?run=0/it&mark=0") as events:
        assert SECRET not in json.dumps(next(events))


def test_a_mistake_of_ours_tells_a_stranger_nothing(
    server: Asker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fanfold.report.pages import work

    def broken(*_: object) -> object:
        raise RuntimeError(f"/home/me/{SECRET} is gone")

    monkeypatch.setattr(work, "work", broken)
    status, _, body = server.ask("/api/run/0/it/work?again")
    assert status == 500 and SECRET.encode() not in body and b"RuntimeError" not in body and b"/home" not in body


def run_view(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["view", *arguments])
    return result.exit_code, result.output + result.stderr


def test_other_machines_are_let_in_only_with_a_token_that_was_chosen(tmp_path: Path) -> None:
    Study(Sweep([1]), lambda candidate, case: 1.0).run(ledger=tmp_path / "a.db", run="it").ledger.close()
    code, text = run_view(str(tmp_path / "a.db"), "--host", "0.0.0.0", "--no-open")
    assert code == 2 and "can be reached from other machines" in text and "--token" in text
    code, text = run_view(str(tmp_path / "a.db"), "--host", "0.0.0.0", "--token", "short", "--no-open")
    assert code == 2 and "can be guessed" in text


def test_what_cannot_be_read_is_said_before_anything_is_served(tmp_path: Path) -> None:
    code, text = run_view(str(tmp_path / "missing.db"), "--no-open")
    assert code == 3 and "no ledger at" in text
    (tmp_path / "text.db").write_text("not a ledger, but a long text of another kind")
    code, text = run_view(str(tmp_path / "text.db"), "--no-open")
    assert code == 3 and "not a ledger" in text
    assert run_view("--png", "best")[0] == 2
