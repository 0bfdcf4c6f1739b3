"""An executor from another package: `fanfold run --executor acme:4`."""

from __future__ import annotations

from fanfold.executors import Threads


class AcmeExecutor(Threads):
    """Runs calls at Acme; here Acme is a few threads of this process."""

    spellings = ("acme:N",)

    def __init__(self, slots: int | None = None) -> None:
        super().__init__(3 if slots is None else slots)
        self.name = f"acme:{self.slots}"
