"""Bodies of HTTP messages, in pieces: large ones are made while they are sent, packed ones unpacked as they arrive."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator

# Unpacking happens in pieces of this size, so a bomb is met by the size limit before it has unfolded.
PIECE = 1 << 20
# Below this size one copy is cheaper than a second system call.
JOIN_BELOW = 64 << 10


class Broken(Exception):
    """An exchange that came to no answer: what kind of failure, and what happened in words."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class UploadBody:
    """A large body that is never held whole: `make` gives its parts, the same ones each time it is sent."""

    __slots__ = ("_make", "_size")

    def __init__(self, make: Callable[[], Iterable[bytes]]) -> None:
        self._make = make
        self._size = sum(map(len, make()))

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        """The body, in pieces that are worth a system call."""
        held = bytearray()
        for part in self._make():
            held += part
            if len(held) >= JOIN_BELOW:
                yield bytes(held)
                held.clear()
        yield bytes(held)

    def __bytes__(self) -> bytes:
        return b"".join(self._make())


class Unpacking:
    """Undoes a content encoding piece by piece, never holding more than one piece."""

    __slots__ = ("_encoding", "_inflate")

    def __init__(self, encoding: str) -> None:
        self._encoding = encoding.strip().lower()
        self._inflate: zlib._Decompress | None = None
        if self._encoding not in ("gzip", "x-gzip", "deflate", "identity"):
            raise Broken("protocol", f"the content encoding {encoding!r} was not asked for and is not supported")

    @property
    def finished(self) -> bool:
        return self._encoding == "identity" or (self._inflate is not None and self._inflate.eof)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._encoding == "identity":
            yield data
            return
        if self._inflate is None:
            self._inflate = zlib.decompressobj(self._window(data[0]))
        inflate = self._inflate
        while data or not inflate.eof:
            if inflate.eof:
                raise Broken("protocol", "the compressed body of the answer is followed by other data")
            try:
                piece = inflate.decompress(data, PIECE)
            except zlib.error as why:
                raise Broken("protocol", f"the body of the answer is not valid {self._encoding} ({why})") from None
            if piece:
                yield piece
            data = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            if not data and len(piece) < PIECE:
                return

    def _window(self, first: int) -> int:
        if self._encoding != "deflate":
            return 16 + zlib.MAX_WBITS
        # "deflate" means a zlib stream, yet some servers send it bare; the method in the first byte tells them apart.
        return zlib.MAX_WBITS if first & 0x0F == 8 else -zlib.MAX_WBITS
