"""The ways a request takes: redirects, proxies, authorities, Unix sockets, and who says it is asking."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from http_servers import Request, Server, client, failing, listening, reply, serving

from fanfold import __version__
from fanfold.errors import ConfigError
from fanfold.models import model
from fanfold.models.http_headers import header_lines
from fanfold.models.http_proxy import Origin, Proxies, Proxy
from fanfold.models.http_route import redirect_target, route
from fanfold.redaction import redact


def test_every_request_says_who_asks_and_a_header_of_the_caller_wins() -> None:
    async def main() -> None:
        async with serving() as server, client() as http:
            await http.request("GET", server.url, {})
            await http.request("GET", server.url, {"User-Agent": "mine/1"})
            agents = [r.headers["user-agent"] for r in server.requests]
            assert agents == [f"fanfold/{__version__}", "mine/1"]

    asyncio.run(main())
    assert header_lines({"User-Agent": "mine/1"}).lower().count("user-agent") == 1


# Redirects


@pytest.mark.parametrize(
    ("method", "status", "url", "location", "target"),
    [
        ("POST", 307, "http://h/v1/chat", "/v1/chat/", "http://h/v1/chat/"),
        ("POST", 308, "https://h/v1/chat", "https://H:443/v2/chat", "https://H:443/v2/chat"),
        ("POST", 308, "http://h/v1?a=b", "chat", "http://h/chat"),
        ("POST", 307, "http://h/v1", "https://h/v1", "https://h/v1"),
        ("GET", 302, "http://h/file", "/real", "http://h/real"),
        ("POST", 302, "http://h/v1", "/v2", None),
        ("POST", 303, "http://h/v1", "/v2", None),
        ("POST", 304, "http://h/v1", "/v2", None),
        ("POST", 307, "http://h/v1", "http://other/v1", None),
        ("POST", 307, "http://h/v1", "//other/v1", None),
        ("POST", 307, "http://h/v1", "http://h:8080/v1", None),
        ("POST", 307, "https://h/v1", "http://h/v1", None),
        ("POST", 307, "http://h:8080/v1", "https://h/v1", None),
        ("POST", 307, "http://h/v1", "http://user@h/v1", None),
        ("POST", 307, "http://h/v1", "http://h.evil.test/v1", None),
        ("POST", 307, "http://h/v1", "ftp://h/v1", None),
        ("POST", 307, "http://h/v1", "http://h /v1", None),
        ("POST", 307, "http://h/v1", "", None),
    ],
)
def test_a_redirect_is_followed_to_the_same_server_only(
    method: str, status: int, url: str, location: str, target: str | None
) -> None:
    assert redirect_target(method, url, status, location) == target


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_post_follows_a_redirect_with_its_body_and_key(status: str) -> None:
    async def main() -> None:
        async def answer(request: Request) -> None:
            if request.target == "/v1/chat":
                await request.reply(b"", status, "location: /v1/chat/\r\n")
            else:
                await request.reply(request.body)

        async with serving(answer) as server, client() as http:
            got = await http.request("POST", f"{server.url}/v1/chat", {"authorization": "Bearer k"}, b"abc")
            assert (got.status, got.body) == (200, b"abc")
            followed = server.requests[1]
            assert (followed.method, followed.target) == ("POST", "/v1/chat/")
            assert followed.headers["authorization"] == "Bearer k" and followed.connection == 1

    asyncio.run(main())


def test_a_key_never_follows_a_redirect_to_another_server() -> None:
    async def main() -> None:
        async with serving() as elsewhere:

            async def answer(request: Request) -> None:
                await request.reply(b"", "307 Temporary Redirect", f"location: {elsewhere.url}/\r\n")

            async with serving(answer) as server, client() as http:
                got = await http.request("POST", server.url, {"authorization": "Bearer k"}, b"{}")
                assert got.status == 307 and elsewhere.connections == 0

    asyncio.run(main())


def test_a_circle_of_redirects_ends() -> None:
    async def main() -> None:
        async def answer(request: Request) -> None:
            await request.reply(b"", "307 Temporary Redirect", "location: /\r\n")

        async with serving(answer) as server, client() as http:
            assert (await http.request("POST", server.url, {}, b"{}", deadline=5)).status == 307
            assert len(server.requests) == 6

    asyncio.run(main())


def test_one_deadline_holds_for_all_redirects_together() -> None:
    async def main() -> None:
        async def answer(request: Request) -> None:
            if request.target == "/slow":
                await request.hang()
            await request.reply(b"", "307 Temporary Redirect", "location: /slow\r\n")

        async with serving(answer) as server, client() as http:
            error = await failing(http.request("POST", server.url, {}, b"{}", deadline=0.3))
            assert (error.kind, error.sent) == ("timeout", True) and "/slow" in str(error)

    asyncio.run(main())


# Proxies


@asynccontextmanager
async def socks_proxy(
    upstream: int, *, user: bytes = b"", refusal: int = 0
) -> AsyncIterator[tuple[int, list[tuple[str, int]]]]:
    """A SOCKS5 proxy that leads every connection to one local port, and notes what it was asked for."""
    asked: list[tuple[str, int]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        version, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        chosen = 2 if user else 0
        if version != 5 or chosen not in methods:
            writer.write(b"\x05\xff")
            return
        writer.write(bytes([5, chosen]))
        if user:
            _, length = await reader.readexactly(2)
            name = await reader.readexactly(length)
            password = await reader.readexactly((await reader.readexactly(1))[0])
            writer.write(b"\x01\x00" if name + b":" + password == user else b"\x01\x01")
        kind = (await reader.readexactly(4))[3]
        size = {1: 4, 4: 16}.get(kind) or (await reader.readexactly(1))[0]
        host = await reader.readexactly(size)
        port = int.from_bytes(await reader.readexactly(2), "big")
        asked.append((host.decode() if kind == 3 else ".".join(map(str, host)), port))
        # A name as the address it connects from: all three kinds are allowed.
        writer.write(bytes([5, refusal, 0, 3, 4]) + b"name" + b"\x00\x50")
        if not refusal:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", upstream)
            try:
                await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
            finally:
                inner_writer.transport.abort()

    async with listening(serve) as port:
        yield port, asked


@pytest.mark.parametrize("scheme", ["socks5", "socks5h"])
@pytest.mark.parametrize("host", ["api.test", "10.1.2.3"])
@pytest.mark.parametrize("user", ["", "me:p%40ss@"])
def test_a_socks_proxy_leads_to_a_host_whose_name_it_resolves(scheme: str, host: str, user: str) -> None:
    async def main() -> None:
        wanted = b"me:p@ss" if user else b""
        async with serving(lambda r: r.reply(r.body)) as server, socks_proxy(server.port, user=wanted) as (port, asked):
            async with client(proxies={"ALL_PROXY": f"{scheme}://{user}127.0.0.1:{port}"}) as http:
                for body in (b"one", bytes(1 << 20)):
                    assert (await http.request("POST", f"http://{host}:81/v1", {}, body)).body == body
            assert asked == [(host, 81)]
            first = server.requests[0]
            assert (first.target, first.headers["host"]) == ("/v1", f"{host}:81")
            assert "proxy-authorization" not in first.headers

    asyncio.run(main())


def test_a_socks_proxy_carries_tls_end_to_end(authority: tuple[Path, Path]) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority)

    async def main() -> None:
        trust = ssl.create_default_context(cafile=authority[0])
        async with serving(tls=tls) as server, socks_proxy(server.port) as (port, asked):
            async with client(verify=trust, proxies={"HTTPS_PROXY": f"socks5h://127.0.0.1:{port}"}) as http:
                assert (await http.request("GET", "https://api.test/", {})).body == b"ok"
            assert asked == [("api.test", 443)]

    asyncio.run(main())


def test_a_socks_proxy_that_refuses_is_an_error_without_its_password() -> None:
    async def message(port: int, user: str = "") -> str:
        async with client(proxies={"ALL_PROXY": f"socks5://{user}127.0.0.1:{port}"}) as http:
            error = await failing(http.request("GET", "http://api.test/", {}))
            assert (error.kind, error.sent) == ("proxy", False)
            assert "secret-9" not in str(error) and f"127.0.0.1:{port}" in str(error)
            return str(error)

    async def main() -> None:
        async with socks_proxy(0, user=b"me:other") as (port, _):
            assert "needs a user and password" in await message(port)
            assert "does not accept its user and password" in await message(port, "me:secret-9@")
        async with socks_proxy(0, refusal=5) as (port, _):
            assert "api.test:80: the connection was refused" in await message(port)
        for words in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""):

            async def something_else(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, words: bytes = words
            ) -> None:
                await reader.read(1)
                writer.write(words)

            async with listening(something_else) as port:
                assert "SOCKS5" in await message(port)

    asyncio.run(main())


def test_all_proxy_stands_in_for_the_other_two() -> None:
    proxies = Proxies({"all_proxy": "socks5://a.test", "HTTPS_PROXY": "b.test:3128", "NO_PROXY": "c.test"})
    assert proxies(Origin("http", "h", 80)) == Proxy("a.test", 1080, socks=True)
    assert proxies(Origin("https", "h", 443)) == Proxy("b.test", 3128)
    assert proxies(Origin("http", "c.test", 80)) is None
    assert Proxies({"ALL_PROXY": "socks5://me:pass-of-the-proxy@a.test"})(Origin("http", "h", 80)) is not None
    assert "pass-of-the-proxy" not in redact("refused: pass-of-the-proxy")
    with pytest.raises(ConfigError, match="ALL_PROXY does not name a usable proxy"):
        Proxies({"ALL_PROXY": "socks4://a.test"})(Origin("http", "h", 80))


# Authorities


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=api.test"
    command += f" -addext subjectAltName=DNS:api.test,DNS:localhost -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize("kind", ["file", "folder", "SSL_CERT_FILE first"])
def test_an_authority_named_in_the_environment_is_trusted(
    authority: tuple[Path, Path], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = authority[0]
    if kind == "folder":
        named = subprocess.run(
            ["openssl", "x509", "-hash", "-noout", "-in", bundle], check=True, capture_output=True, text=True
        )
        shutil.copy(bundle, tmp_path / f"{named.stdout.strip()}.0")
        bundle = tmp_path
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    if kind == "SSL_CERT_FILE first":
        monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
        bundle = tmp_path / "none.pem"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*authority)

    async def main() -> None:
        async with serving(tls=tls) as server, client() as http:
            assert (await http.request("GET", f"https://localhost:{server.port}/", {})).body == b"ok"

    asyncio.run(main())


def test_a_bundle_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "none.pem"))

    async def main() -> None:
        async with client() as http:
            error = await failing(http.request("GET", "https://localhost:1/", {}))
            assert (error.kind, error.sent) == ("certificate", False)
            assert "REQUESTS_CA_BUNDLE=" in str(error)

    asyncio.run(main())


# Unix sockets


@asynccontextmanager
async def on_socket(server: Server, path: Path) -> AsyncIterator[None]:
    listener = await asyncio.start_unix_server(server.serve, path)
    try:
        yield
    finally:
        listener.close()


def test_a_unix_socket_is_an_address_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"

    async def main() -> None:
        server = Server(lambda r: r.reply(r.body))
        async with on_socket(server, path), client(proxies={"ALL_PROXY": "http://127.0.0.1:1"}) as http:
            for url in (f"unix://{path}:/v1/m:generate?a=b", f"http+unix://{str(path).replace('/', '%2F')}/v1/x"):
                assert (await http.request("POST", url, {}, b"abc")).body == b"abc"
            assert [r.target for r in server.requests] == ["/v1/m:generate?a=b", "/v1/x"]
            assert [r.connection for r in server.requests] == [1, 1]
            assert server.requests[0].headers["host"] == "localhost"
        async with client() as http:
            path.unlink(missing_ok=True)
            error = await failing(http.request("GET", f"unix://{path}:/v1", {}))
            assert (error.kind, error.sent) == ("connect", False) and str(path) in str(error)

    asyncio.run(main())


@pytest.mark.parametrize("url", ["unix:///a.sock", "unix://a.sock:/v1", "http+unix:///v1", "unix:", "unix:///a b:/v1"])
def test_an_address_of_no_unix_socket_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match=r"unix:///path/to\.sock:/v1"):
        route(url, Proxies({}))


def test_a_model_is_asked_over_a_unix_socket_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    answer = reply(b'{"choices": [{"message": {"content": "Hi"}}]}')

    async def main() -> None:
        server = Server(lambda r: r.send(answer))
        async with on_socket(server, path):
            asked = model("m", base_url=f"unix://{path}:/v1", key="key-of-the-socket")
            assert (await asked.generate("Hello")).text == "Hi"
            assert server.requests[0].target == "/v1/chat/completions"
            assert server.requests[0].headers["authorization"] == "Bearer key-of-the-socket"

    asyncio.run(main())
