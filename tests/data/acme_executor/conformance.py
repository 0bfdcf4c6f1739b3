"""The suite that Fanfold ships for authors of executors."""

from __future__ import annotations

from acme_executor import AcmeExecutor

from fanfold.testing import ExecutorConformance


class TestAcme(ExecutorConformance):
    def make(self) -> AcmeExecutor:
        return AcmeExecutor(2)
