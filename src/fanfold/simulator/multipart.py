"""Reading multipart/form-data bodies, without copying the file in them more than once."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message

from fanfold.simulator.wire import ApiError


@dataclass(frozen=True, slots=True)
class Part:
    """One field of a form; `filename` is None for a plain value."""

    content: bytes
    filename: str | None = None


def read_form(content_type: str, body: bytes) -> dict[str, Part]:
    """The fields of a form by their names; a body that is not a form is a 400."""
    mark = boundary_of(content_type, "multipart/form-data")
    if mark is None:
        raise ApiError(400, f"expected multipart/form-data with a boundary, got {content_type!r}")
    fields: dict[str, Part] = {}
    at = body.find(mark)
    while at >= 0:
        start = at + len(mark)
        if body[start : start + 2] == b"--":
            return fields
        head_end = body.find(b"\r\n\r\n", start)
        at = body.find(b"\r\n" + mark, head_end)
        if head_end < 0 or at < 0:
            break
        name, filename = _disposition(body[start + 2 : head_end])
        fields[name] = Part(body[head_end + 4 : at], filename)
        at += 2
    raise ApiError(400, "the multipart body ends before its closing boundary")


def boundary_of(content_type: str, kind: str) -> bytes | None:
    """What stands before every part of a body of this kind; None where the type is another one, or names none."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_param("boundary")
    wanted = header.get_content_type() == kind and isinstance(boundary, str)
    return b"--" + str(boundary).encode("latin-1") if wanted else None


def _disposition(head: bytes) -> tuple[str, str | None]:
    for line in head.decode("utf-8", "replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition":
            message = Message()
            message["content-disposition"] = value.strip()
            field = message.get_param("name", header="content-disposition")
            if isinstance(field, str):
                return field, message.get_filename()
    raise ApiError(400, "a part of the multipart body has no name")
