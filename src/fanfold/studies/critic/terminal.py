"""Feedback from a person, at the terminal or on the run's page: a rating, a yes or no, or a choice."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from fanfold.calls import current_broker, stop_run
from fanfold.errors import CallFailed, ConfigError
from fanfold.events import Notice, PersonAsked
from fanfold.remote import ask_person
from fanfold.studies.critic.feedback import Feedback, read
from fanfold.texts import printable

_INSTEAD = (
    "everything answered so far is kept; run it again under the same name to continue. Without a person, use "
    "feedback='rules', 'judge:MODEL' or 'module:function'; to answer on the run's page (`fanfold view`), 'page'"
)


def _of_digits(text: str) -> Any:
    return int(text) if text in ("1", "2", "3", "4", "5") else None


def _of_share(text: str) -> Any:
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        return None
    return value if 0.0 <= value <= 1.0 else None


#: For each thing that can be asked: the kind of feedback, the question, and how the answer is read (None: not at all).
QUESTIONS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "score": ("score", "How good is it, from 0 to 1?", _of_share),
    "rating": ("rating", "How good is it, from 1 (useless) to 5 (excellent)?", _of_digits),
    "thumbs": (
        "thumbs",
        "Is it good? (y/n)",
        lambda text: {"y": True, "yes": True, "n": False, "no": False}.get(text.lower()),
    ),
    "pair": (
        "preference",
        "Which is better? (A, B, or = for neither)",
        lambda text: {"a": "A", "b": "B", "=": "tie", "tie": "tie"}.get(text.lower()),
    ),
}


class NobodyThere(Exception):
    """There is no terminal, or the person at it ended the input."""


@dataclass(frozen=True)
class Human:
    """Asks a person, one question at a time however many responses wait.

    Where nobody can be asked the run is stopped, and the question remains open in the ledger instead of failed.
    """

    ask: str = "rating"
    #: Opens what is written to and read from; a test brings its own.
    open: Callable[[ExitStack], tuple[IO[str], IO[str]]] = field(default=lambda stack: terminal(stack), compare=False)

    async def check_present(self) -> None:
        """Stop the run where there is no terminal to ask at."""
        try:
            with ExitStack() as stack:
                self.open(stack)
        except NobodyThere as error:
            await _stop(error)

    async def __call__(self, query: str, responses: tuple[str, ...]) -> Feedback:
        kind, question, reading = QUESTIONS[self.ask]
        emit = current_broker().emit
        emit(PersonAsked(done=False))
        try:
            return read(kind, await _beside(lambda: self._converse(query, responses, question, reading)))
        except NobodyThere as error:
            await _stop(error)
        finally:
            emit(PersonAsked(done=True))

    def _converse(self, query: str, responses: tuple[str, ...], question: str, reading: Callable[[str], Any]) -> Any:
        with _ONE_AT_A_TIME, ExitStack() as stack:
            reader, writer = self.open(stack)
            titles = [""] if len(responses) == 1 else [f"{letter}: " for letter in "AB"]
            shown = [f"{title}{printable(response)}" for title, response in zip(titles, responses)]
            writer.write("\n\n".join(["", f"> {printable(query)}", *shown, ""]))
            while True:
                writer.write(f"{question} ")
                writer.flush()
                line = reader.readline()
                if not line:
                    raise NobodyThere("the input ended before there was feedback")
                if (value := reading(line.strip())) is not None:
                    return value
                writer.write("That could not be read. ")


async def _stop(error: NobodyThere) -> NoReturn:
    await stop_run(CallFailed("no-feedback", f"{error}: {_INSTEAD}"))


@dataclass(frozen=True)
class OnPage:
    """Waits until somebody answers on the run's page.  What was answered before a resume is not asked again."""

    ask: str = "rating"

    async def __call__(self, query: str, responses: tuple[str, ...]) -> Feedback:
        kind = QUESTIONS[self.ask][0]
        current_broker().emit(Notice("an answer waits for feedback on the run's page: fanfold view"))
        while True:
            value = await ask_person({"query": query, "answers": list(responses), "ask": kind})
            try:
                return read(kind, value)
            except ConfigError as error:  # a page checks it before; other programs may not
                current_broker().emit(Notice(f"feedback that cannot be used: {error}"))


_ONE_AT_A_TIME = threading.Lock()
TTY = Path("/dev/tty")


def terminal(stack: ExitStack) -> tuple[IO[str], IO[str]]:
    """The terminal this process belongs to, whatever its streams are tied to; else an interactive stdin."""
    try:
        reader, writer = (stack.enter_context(TTY.open(mode, encoding="utf-8", errors="replace")) for mode in "rw")
        return reader, writer
    except OSError:
        if sys.stdin is not None and sys.stdin.isatty():
            return sys.stdin, sys.stderr
        raise NobodyThere("feedback='human' needs a terminal, and there is none") from None


async def _beside(work: Callable[[], Any]) -> Any:
    """The value of a call that waits for a person, on a thread that does not keep the process alive."""
    answer: Future[Any] = Future()
    answer.set_running_or_notify_cancel()  # a run that is over does not wait, and the thread may still answer

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True, name="fanfold-feedback").start()
    return await asyncio.wrap_future(answer)
