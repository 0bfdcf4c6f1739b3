"""More than two hundred odd ways for a server to answer: valid, borderline and broken."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

BODY = b'{"answer": "forty-two", "and": "some more words"}'
OK = b"HTTP/1.1 200 OK\r\nx-id: 7\r\n"


@dataclass(frozen=True)
class Oddity:
    """What a server sends, cut into pieces, and whether it closes the connection then."""

    pieces: tuple[bytes, ...]
    close: bool = True
    method: str = "POST"


def _length(body: bytes) -> bytes:
    return b"content-length: %d\r\n\r\n" % len(body) + body


def _chunked(body: bytes, *, size: int = 7, form: bytes = b"%x", extension: bytes = b"", trailer: bytes = b"") -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(form % len(part) + extension + b"\r\n" + part + b"\r\n" for part in parts)
    return b"transfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"


def _framings(body: bytes) -> dict[str, bytes]:
    return {
        "length": _length(body),
        "chunked": _chunked(body),
        "one chunk": _chunked(body, size=10_000),
        "capital chunk sizes": _chunked(body, size=13, form=b"%X"),
        "padded chunk sizes": _chunked(body, form=b"%06x"),
        "chunk extensions": _chunked(body, extension=b';a=b;c="d"'),
        "trailers": _chunked(body, trailer=b"x-late: 1\r\nx-id: 8\r\n"),
        "until close": b"\r\n" + body,
    }


def _raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(body) + packer.flush()


def _encodings() -> Iterator[tuple[str, bytes, bytes]]:
    packed = gzip.compress(BODY, mtime=0)
    yield "plain", b"", BODY
    yield "identity", b"content-encoding: identity\r\n", BODY
    yield "gzip", b"content-encoding: gzip\r\n", packed
    yield "GZIP", b"Content-Encoding: GZIP\r\n", packed
    yield "x-gzip", b"content-encoding: x-gzip\r\n", packed
    yield "deflate", b"content-encoding: deflate\r\n", zlib.compress(BODY)
    yield "raw deflate", b"content-encoding: deflate\r\n", _raw_deflate(BODY)
    yield "empty gzip", b"content-encoding: gzip\r\n", b""
    yield "no gzip at all", b"content-encoding: gzip\r\n", BODY
    yield "half a gzip", b"content-encoding: gzip\r\n", packed[:-9]
    yield "gzip and more", b"content-encoding: gzip\r\n", packed + b"more"
    yield "two gzips", b"content-encoding: gzip\r\n", packed + packed
    yield "gzip of gzip", b"content-encoding: gzip, gzip\r\n", gzip.compress(packed, mtime=0)
    yield "brotli, which nobody asked for", b"content-encoding: br\r\n", b"\x0b\x02\x80Hi\x03"


STATUS_LINES = {
    "no reason": b"HTTP/1.1 200\r\n",
    "an empty reason": b"HTTP/1.1 200 \r\n",
    "a long reason": b"HTTP/1.1 200 " + b"very " * 50 + b"OK\r\n",
    "a reason beyond ASCII": b"HTTP/1.1 200 D\xe9j\xe0 vu\r\n",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n",
    "HTTP/1.0 and keep-alive": b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n",
    "connection: close": b"HTTP/1.1 200 OK\r\nconnection: close\r\n",
    "connection: keep-alive": b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nkeep-alive: timeout=5\r\n",
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\n",
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\n",
    "lower-case": b"http/1.1 200 OK\r\n",
    "ICY": b"ICY 200 OK\r\n",
    "two spaces": b"HTTP/1.1  200 OK\r\n",
    "a tab": b"HTTP/1.1\t200 OK\r\n",
    "two digits": b"HTTP/1.1 20 OK\r\n",
    "four digits": b"HTTP/1.1 2000 OK\r\n",
    "no digits": b"HTTP/1.1 OK\r\n",
    "a blank line before": b"\r\nHTTP/1.1 200 OK\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a web page": b"<html>\r\n",
}
HEADERS = {
    "of one name twice": b"x-id: 7\r\nX-ID: 8\r\n",
    "without a value": b"x-id:\r\n",
    "with spaces around the value": b"x-id: \t 7 \t \r\n",
    "without a space": b"x-id:7\r\n",
    "with bytes beyond ASCII": b"x-id: \xc3\xa9\r\n",
    "with a colon": b"x-id: a:b:c\r\n",
    "with a space before the colon": b"x-id : 7\r\n",
    "with a space in the name": b"x id: 7\r\n",
    "without a colon": b"x-id\r\n",
    "without a name": b": 7\r\n",
    "on two lines": b"x-id: a\r\n b\r\n",
    "with a null": b"x-id: a\0b\r\n",
    "with a lone carriage return": b"x-id: a\rb\r\n",
    "with an escape sequence": b"x-id: a\x1bb\r\n",
    "of 30 kB": b"x-long: " + b"y" * 30_000 + b"\r\nx-id: 7\r\n",
    "a hundred and fifty": b"".join(b"x-%d: y\r\n" % number for number in range(150)) + b"x-id: 7\r\n",
    "content-type of another charset": b"content-type: application/json; charset=utf-16\r\nx-id: 7\r\n",
    "upgrade": b"upgrade: h2c\r\nx-id: 7\r\n",
    "upgrade with connection": b"upgrade: h2c\r\nconnection: upgrade\r\nx-id: 7\r\n",
}
LENGTHS = {
    "twice the same": b"content-length: %d\r\ncontent-length: %d\r\n" % (len(BODY), len(BODY)),
    "twice the same on one line": b"content-length: %d, %d\r\n" % (len(BODY), len(BODY)),
    "twice, differing": b"content-length: %d\r\ncontent-length: 5\r\n" % len(BODY),
    "negative": b"content-length: -1\r\n",
    "with a plus": b"content-length: +%d\r\n" % len(BODY),
    "of no number": b"content-length: many\r\n",
    "empty": b"content-length:\r\n",
    "with leading zeros": b"content-length: 000%d\r\n" % len(BODY),
    "in hexadecimal": b"content-length: 0x31\r\n",
    "beyond 64 bits": b"content-length: 99999999999999999999999\r\n",
    "too long": b"content-length: %d\r\n" % (len(BODY) + 10),
    "too short": b"content-length: %d\r\n" % (len(BODY) - 10),
    "zero": b"content-length: 0\r\n",
    "and chunked": b"content-length: %d\r\ntransfer-encoding: chunked\r\n" % len(BODY),
}
CHUNKS = {
    "a size of no number": b"xyz\r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "a size with 0x": b"0x3\r\nabc\r\n0\r\n\r\n",
    "an empty size": b"\r\nabc\r\n0\r\n\r\n",
    "a size beyond 64 bits": b"fffffffffffffffff\r\nabc\r\n",
    "a space after the size": b"3 \r\nabc\r\n0\r\n\r\n",
    "a space before the size": b" 3\r\nabc\r\n0\r\n\r\n",
    "no line break after the data": b"3\r\nabc0\r\n\r\n",
    "bare line feeds": b"3\nabc\n0\n\n",
    "a size that is too small": b"2\r\nabc\r\n0\r\n\r\n",
    "no last chunk": b"3\r\nabc\r\n",
    "half a chunk": b"9\r\nabc",
    "no end after the last chunk": b"3\r\nabc\r\n0\r\n",
    "half a trailer": b"3\r\nabc\r\n0\r\nx-late: 1",
    "a trailer without a colon": b"3\r\nabc\r\n0\r\nx-late\r\n\r\n",
    "nothing": b"0\r\n\r\n",
    "empty extensions": b"3;\r\nabc\r\n0;;\r\n\r\n",
    "many zeros": b"3\r\nabc\r\n0000\r\n\r\n",
}
TRANSFERS = ("Chunked", "CHUNKED", "identity", "gzip", "gzip, chunked", "chunked, chunked", "chunked;q=1", "")
STATUSES = (
    *(200, 201, 202, 203, 206, 207, 226, 299, 300, 304, 305, 399, 400, 401, 402, 403, 404, 405, 406, 408, 409, 410),
    *(411, 413, 415, 418, 421, 422, 425, 426, 429, 431, 451, 499, 500, 501, 502, 503, 504, 505, 507, 511, 520, 522),
    *(524, 529, 530, 599, 600, 799, 999),
)
INTERIM = {
    "100": b"HTTP/1.1 100 Continue\r\n\r\n",
    "100 with a header": b"HTTP/1.1 100 Continue\r\nx-id: 1\r\nx-early: 1\r\n\r\n",
    "102": b"HTTP/1.1 102 Processing\r\n\r\n",
    "103": b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n",
    "ten of 100": b"HTTP/1.1 100 Continue\r\n\r\n" * 10,
    "100, 102, 103": b"".join(b"HTTP/1.1 %d X\r\n\r\n" % status for status in (100, 102, 103)),
    "199": b"HTTP/1.1 199 What\r\n\r\n",
    "101": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
}


def oddities() -> dict[str, Oddity]:
    """All of them, by name."""
    whole = OK + _length(BODY)
    cases: dict[str, Oddity] = {}

    def add(name: str, *pieces: bytes, close: bool = True, method: str = "POST") -> None:
        assert name not in cases, name
        cases[name] = Oddity(pieces, close, method)

    for encoding, header, body in _encodings():
        for framing, framed in _framings(body).items():
            if encoding in ("plain", "gzip") or framing in ("length", "chunked", "until close"):
                add(f"body: {encoding}, {framing}", OK + header + framed)
    for framing, framed in _framings(BODY).items():
        if framing != "until close":
            add(f"kept open: {framing}", OK + framed, close=False)
            add(f"byte by byte: {framing}", *(bytes([byte]) for byte in OK + framed), close=False)
    for name, line in STATUS_LINES.items():
        add(f"status line: {name}", line + b"x-id: 7\r\n" + _length(BODY))
    for status in STATUSES:
        add(f"status: {status}", b"HTTP/1.1 %d X\r\nx-id: 7\r\n" % status + _length(b"" if status == 304 else BODY))
    for status in (204, 205, 304):
        add(f"bodiless: {status}", b"HTTP/1.1 %d X\r\nx-id: 7\r\n\r\n" % status, close=status == 205)
        add(f"bodiless: {status} with a length", b"HTTP/1.1 %d X\r\ncontent-length: 5\r\n\r\n" % status)
    for name, lines in HEADERS.items():
        add(f"header: {name}", b"HTTP/1.1 200 OK\r\n" + lines + _length(BODY))
    add("header: bare line feeds", whole.replace(b"\r\n", b"\n"))
    add("header: in capitals", whole.upper())
    for name, lines in LENGTHS.items():
        add(f"length: {name}", OK + lines + b"\r\n" + BODY)
    for name, chunks in CHUNKS.items():
        add(f"chunks: {name}", OK + b"transfer-encoding: chunked\r\n\r\n" + chunks)
    for name in TRANSFERS:
        chunks = b"3\r\nabc\r\n0\r\n\r\n"
        add(f"transfer-encoding: {name or 'empty'}", OK + b"transfer-encoding: " + name.encode() + b"\r\n\r\n" + chunks)
    add("transfer-encoding: twice", OK + b"transfer-encoding: chunked\r\n" + _chunked(BODY))
    for name, early in INTERIM.items():
        add(f"interim: {name}", early + whole)
        if name != "101":
            add(f"interim: {name}, apart", early, whole, close=False)
    for share in range(0, 10):
        add(f"cut: at {share}0 %", whole[: len(whole) * share // 10])
    for share in range(1, 10):
        packed = OK + b"content-encoding: gzip\r\n" + _chunked(gzip.compress(BODY, mtime=0))
        add(f"cut: compressed, at {share}0 %", packed[: len(packed) * share // 10])
    for framing, framed in _framings(BODY).items():
        if framing != "until close":
            add(f"more than was asked: {framing}", OK + framed + b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nno")
    for framing, framed in _framings(BODY).items():
        head = framed.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if framing != "until close" else b"\r\n"
        add(f"HEAD: {framing}", OK + head, method="HEAD", close=False)
    for status in (301, 302, 303, 307, 308):
        for method in ("GET", "POST"):
            for kind, location in (("here", b"/landed"), ("elsewhere", b"http://localhost.invalid/"), ("nowhere", b"")):
                line = b"HTTP/1.1 %d Moved\r\nx-id: 7\r\nlocation: %b\r\n" % (status, location)
                add(f"redirect: {status} of {method} to {kind}", line + _length(b"moved"), method=method, close=False)
    return cases
