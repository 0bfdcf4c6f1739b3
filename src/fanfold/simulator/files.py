"""The files of a provider: uploaded as a form, listed in pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fanfold.simulator.multipart import read_form
from fanfold.simulator.state import SimulatorState
from fanfold.simulator.wire import ApiError, Json, Request, SimulatedResponse, reply

MAX_FILE_BYTES = 512 * 2**20
FILE_LIFETIME = 30 * 24 * 3600

_PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")


@dataclass(frozen=True, slots=True)
class File:
    """An uploaded or produced file."""

    id: str
    owner: str
    filename: str
    purpose: str
    created: float
    content: bytes = field(repr=False)


class FileStore:
    """The files of one dialect; each key sees its own."""

    def __init__(self, state: SimulatorState, max_bytes: int = MAX_FILE_BYTES) -> None:
        self._state = state
        self._max_bytes = max_bytes
        self._files: dict[str, File] = {}

    def add(self, owner: str, filename: str, purpose: str, content: bytes) -> File:
        file = File(f"file-{self._state.serial()}", owner, filename, purpose, self._state.wall(), content)
        self._files[file.id] = file
        return file

    def find(self, id: str, owner: str) -> File:
        file = self._files.get(id)
        if file is None or file.owner != owner:
            raise ApiError(404, f"No such File object: {id}", param="id")
        return file

    def view(self, file: File, *, fresh: bool = False) -> Json:
        """The file object; the answer to an upload does not tell the expiry yet, as really recorded."""
        return {
            "object": "file",
            "id": file.id,
            "purpose": file.purpose,
            "filename": file.filename,
            "bytes": len(file.content),
            "created_at": int(file.created),
            "expires_at": None if fresh else int(file.created) + FILE_LIFETIME,
            "status": "processed",
            "status_details": None,
        }

    def upload(self, request: Request, owner: str) -> SimulatedResponse:
        fields = read_form(request.headers.get("content-type", ""), request.body)
        for name in ("file", "purpose"):
            if name not in fields:
                text = f"Missing required parameter: '{name}'."
                raise ApiError(400, text, param=name, code="missing_required_parameter")
        purpose = fields["purpose"].content.decode("utf-8", "replace")
        if purpose not in _PURPOSES:
            text = f"{purpose!r} is not one of {list(_PURPOSES)} - 'purpose'"
            raise ApiError(400, text, param="purpose", code="invalid_value")
        content = fields["file"].content
        if len(content) > (self._max_bytes if purpose == "batch" else MAX_FILE_BYTES):
            raise ApiError(413, f"The file of {len(content):,} bytes is too large for purpose {purpose!r}.")
        if not content:
            raise ApiError(400, "The file is empty.", param="file")
        file = self.add(owner, fields["file"].filename or "upload", purpose, content)
        return reply(self.view(file, fresh=True))

    def get(self, id: str, owner: str) -> SimulatedResponse:
        return reply(self.view(self.find(id, owner)))

    def content(self, id: str, owner: str) -> SimulatedResponse:
        return SimulatedResponse(200, {"content-type": "application/octet-stream"}, self.find(id, owner).content)

    def delete(self, id: str, owner: str) -> SimulatedResponse:
        del self._files[self.find(id, owner).id]
        return reply({"id": id, "object": "file", "deleted": True})

    def list_files(self, query: Mapping[str, str], owner: str) -> SimulatedResponse:
        files = [file for file in self._files.values() if file.owner == owner]
        if "purpose" in query:
            files = [file for file in files if file.purpose == query["purpose"]]
        if query.get("order", "desc") == "desc":
            files.reverse()
        return paged([self.view(file) for file in files], query, default=10_000, most=10_000)


def paged(views: list[Json], query: Mapping[str, str], *, default: int, most: int) -> SimulatedResponse:
    """A page of a list, as its query asks for it."""
    limit = query.get("limit", str(default))
    if not limit.isdigit() or not 1 <= int(limit) <= most:
        text = f"Invalid 'limit': expected a whole number between 1 and {most}, but got {limit!r} instead."
        raise ApiError(400, text, param="limit", code="invalid_value")
    start = 0
    if "after" in query:
        ids = [view["id"] for view in views]
        if query["after"] not in ids:
            raise ApiError(400, f"Invalid 'after': there is no object {query['after']!r}.", param="after")
        start = ids.index(query["after"]) + 1
    data = views[start : start + int(limit)]
    return reply(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": start + len(data) < len(views),
        }
    )
