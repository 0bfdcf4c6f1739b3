"""A critic inside an application: answers questions, is told later what people thought of the answers, and learns.

Everything is in one file.  Any number of processes may ask and tell at the same time, and each knows what all of them
were told.  All work happens on one background event loop, so a critic can be used from any thread, any event loop, a
notebook, or code without one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import hmac
import os
import re
import secrets
import shlex
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from fanfold.calls import CallBroker, at_work
from fanfold.encoding import digest, encode
from fanfold.errors import CallFailed, ConfigError, LedgerError, UnknownShow
from fanfold.ledger import RUN_NAME, Commits, Insert, Ledger, create_run, describe_run, find_show
from fanfold.models import Model
from fanfold.studies.critic.bank import system_prompt
from fanfold.studies.critic.config import CriticConfig
from fanfold.studies.critic.evaluator import Generate, Show, Shown, answering, slots
from fanfold.studies.critic.feedback import KINDS, Feedback, aggregate, read
from fanfold.studies.critic.learner import FeedbackLearner, ShowMark, ShowOrigin
from fanfold.studies.critic.opening import check_seconds, plain, settings_of, texts_of
from fanfold.summary import Section, Summary
from fanfold.sync import start_beside

T = TypeVar("T")

#: Settings that only a study has a use for.
STUDY_ONLY = ("writer", "queries", "total", "feedback", "ask", "concurrent", "fitness_threshold")
#: Seconds after which nobody waits for feedback on a show any longer.
EXPIRES = 3600.0
#: Seconds that the model has for an answer: who asks is waiting.
TIMEOUT = 300.0
#: Shows and feedback between two checkpoints.
CHECKPOINT = 200
#: Names that `tell` has beside the kinds of feedback.
ALIASES = {"reward": "score", "preferred": "preference"}
#: Seconds that calls on their way have when a critic is closed.
GRACE = 5.0

_ID = re.compile(r"(\d{1,15})-([0-9a-f]{16})")


@dataclass(frozen=True)
class ShownAnswer:
    """What a person is shown: tell what they think of it under its `id`.

    Of two answers to choose from, `texts` and `prompts` have both; `text` and `prompt` are the first.
    """

    id: str
    query: str
    texts: tuple[str, ...]
    prompts: tuple[str, ...]

    @property
    def text(self) -> str:
        return self.texts[0]

    @property
    def prompt(self) -> str:
        return self.prompts[0]


class Critic:
    """Answers questions with the prompt that people will like best, and learns from what they say.  See `Critic.open`.

    `ask` and `tell` return when what they did is safe in the file.
    """

    def __init__(self, ledger: Ledger, learner: FeedbackLearner, config: CriticConfig) -> None:
        self.config = config
        self.timeout: float | None = TIMEOUT
        self._ledger, self._learner = ledger, learner
        self._process = os.getpid()
        self._asked, self._closed = 0, False
        self._commits: Commits | None = None
        self._broker: CallBroker | None = None

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        model: str | None = None,
        prompts: Iterable[str] | None = None,
        candidates: int | None = None,
        expires: float = EXPIRES,
        timeout: float | None = TIMEOUT,
        name: str = "critic",
        **settings: Any,
    ) -> Critic:
        """Open the critic of an application, or begin one.

        A new one needs a model and system prompts to choose from.  Later both may be left out or changed: a prompt
        that is new joins the others, and one that is no longer given leaves.  `candidates` prompts answer each
        question, and the best answer is shown.  Nobody waits for feedback longer than `expires` seconds, and for an
        answer longer than `timeout` (None: as long as it takes).  `settings` are those of `CriticConfig`, such as
        `max_tokens`, `base_url` and `half_life` (200: what was said 200 answers ago counts half).  A file holds
        several critics under different names.
        """
        prompts = texts_of(prompts)
        if RUN_NAME.fullmatch(name) is None:
            raise ConfigError(f"{name!r} cannot be a critic's name: use letters, digits, dots, dashes and underscores")
        for key in set(STUDY_ONLY).intersection(settings):
            raise ConfigError(f"{key} is a setting of the study `fanfold run critic`: leave it out")
        check_seconds(timeout, expires)
        changes = {key: plain(value) for key, value in settings.items()}
        if model is not None:
            changes["model"] = model
        where = f"{name!r} in {path}"
        if not Path(path).exists():
            new, *_ = settings_of(None, changes, prompts, candidates, where)  # what cannot work leaves no file behind
            answering(new.model, new.base_url)
        ledger = Ledger(path)
        try:
            began = ledger.find(name) is not None
            try:
                critic = cls._of(ledger, name, changes, prompts, candidates, expires)
            except LedgerError:
                if began or ledger.find(name) is None:
                    raise
                critic = cls._of(ledger, name, changes, prompts, candidates, expires)  # another process was quicker
            critic.timeout = timeout
            return critic
        except BaseException:
            ledger.close()
            raise

    @classmethod
    def _of(
        cls,
        ledger: Ledger,
        name: str,
        changes: Mapping[str, Any],
        prompts: list[str] | None,
        candidates: int | None,
        expires: float,
    ) -> Critic:
        """The critic of this name, which begins here if the file has none."""
        run = ledger.find(name)
        former = None if run is None else _recorded(ledger, run, name)
        config, given, wanted = settings_of(former, changes, prompts, candidates, f"{name!r} in {ledger.path}")
        retired = [] if former is None else [*former["retired"], *former["prompts"]]
        retired = [text for text in dict.fromkeys(retired) if text not in given]
        if "model" in changes:
            answering(config.model, config.base_url)  # one that cannot be asked is refused now
        meta: dict[str, Any] = {
            "target": "critic",
            "fields": dataclasses.asdict(config),
            "prompts": given,
            "retired": retired,
        }
        serve = f"fanfold critic serve {shlex.quote(str(ledger.path))}{'' if name == 'critic' else f' --name {name}'}"
        meta |= {"candidates": wanted} if wanted > config.actor_critic.num_candidates else {}
        meta |= {"online": True, "continue": f"{serve} (in Python: Critic.open)"}
        if run is None or former is None:
            identity = {"strategy": "people's feedback", "seed": config.seed}
            run = create_run(ledger, name, identity, meta, slots(1))
        if former is None or encode(meta) != encode(former):
            describe_run(ledger, run, meta, "it answers whenever somebody asks")
        learner = FeedbackLearner(config, ledger, run, expires)
        learner.begin(given, retired)
        return cls(ledger, learner, config)

    # -- asking and telling ------------------------------------------------------------------------------------------

    async def ask(self, query: str, *, show: int = 1) -> ShownAnswer:
        """Answer a question; with `show=2` there are two answers, for a preference."""
        return await self._beside(functools.partial(self._ask, query, show))

    def ask_sync(self, query: str, *, show: int = 1) -> ShownAnswer:
        """`ask` for code without an event loop, and for notebooks."""
        return self._start(functools.partial(self._ask, query, show)).result()

    async def tell(
        self,
        id: str,
        *,
        rating: int | None = None,
        reward: float | None = None,
        preferred: str | None = None,
        thumbs: bool | None = None,
        **more: Any,
    ) -> None:
        """Say what a person thinks of what they were shown.

        A `rating` is from 1 to 5, a `reward` from 0 to 1, `thumbs` true for up; of two answers, `preferred` is "A",
        "B" or "tie".  Further kinds are those of `fanfold.studies.critic.feedback`; several at once become one score.
        It may come at any time and in any order.  Told again, the last counts.
        """
        said = {"rating": rating, "reward": reward, "preferred": preferred, "thumbs": thumbs, **more}
        await self._beside(functools.partial(self._tell, id, said))

    def tell_sync(self, id: str, **feedback: Any) -> None:
        """`tell` for code without an event loop, and for notebooks."""
        self._start(functools.partial(self._tell, id, feedback)).result()

    def status(self) -> dict[str, int]:
        """How many shows there are, how many have feedback, and how many are still waited for."""
        return self._start(self._status).result()

    def ranking(self) -> list[tuple[str, float]]:
        """The prompts and their fitness, the best first."""
        return self._start(self._ranking).result()

    def close(self) -> None:
        """Save what was learnt, so that the next start is quick.  A critic that is never closed loses nothing."""
        if not self._closed:
            self._start(self._close).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # -- on the background loop --------------------------------------------------------------------------------------

    def _start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        if os.getpid() != self._process:
            raise ConfigError("this critic was opened before the process forked: open one in each process, after that")
        if self._closed:
            raise ConfigError(f"this critic is closed: Critic.open({str(self._ledger.path)!r}) opens it again")
        return start_beside(work)

    async def _beside(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await asyncio.wrap_future(self._start(work))

    async def _ask(self, query: str, show: int) -> ShownAnswer:
        most = self.config.actor_critic.num_candidates
        if not isinstance(query, str) or not query.strip():
            raise ConfigError(f"query must be a text that asks something, not {query!r:.60}")
        if show not in (1, 2) or show > most:
            raise ConfigError(
                f"show={show!r} is not possible with {most} candidates: use show=1 or 2, and candidates=2"
            )
        learner = self._learner
        learner.catch_up()
        number = self._asked = max(self._asked + 1, learner.shows)
        step = learner.search.propose(number, query)
        try:
            if len(step.prompts) < show:
                raise ConfigError("two answers need two prompts, and there is one: open the file with more prompts")
            responses = await self._respond(step, show)
        except BaseException:
            learner.search.memory.generating.pop(number, None)
            raise
        choice = learner.search.choose(step, responses, show)
        assert choice is not None  # there are enough responses
        shown, key = choice.show(0, query), secrets.token_hex(8)  # the file has the number
        learner.expect(key)
        origin = encode(ShowOrigin(key, time.time(), choice))
        await self._writing().safe(Insert.SHOWN, (learner.run, encode(shown, "the query and its answers"), origin))
        learner.catch_up()
        texts, prompts = zip(*((each.response, system_prompt(each.prompt, self.config.pinned)) for each in shown.shown))
        return ShownAnswer(f"{learner.number(key)}-{key}", query, texts, prompts)

    async def _respond(self, step: Generate, wanted: int) -> list[tuple[Shown, int]]:
        """The responses that came, with their tokens; raises where there are too few."""
        config = self.config
        self._writing()
        assert self._broker is not None
        with at_work(self._broker):
            calls = [
                asyncio.ensure_future(
                    self._model.generate(
                        step.query, system=system_prompt(p, config.pinned), temperature=t, max_tokens=config.max_tokens
                    )
                )
                for p, t in zip(step.prompts, step.temperatures)
            ]
            try:
                done, _ = await asyncio.wait(calls, timeout=self.timeout)
            finally:
                for call in calls:
                    call.cancel()  # one that was sent is carried through and kept, because it is paid for
        late = f"{config.model} has not answered within {self.timeout} s: ask again later, or raise the timeout"
        responses: list[tuple[Shown, int]] = []
        problem: BaseException = CallFailed("malformed", f"{config.model} answered with nothing but blanks")
        for slot, (prompt, temperature, call) in enumerate(zip(step.prompts, step.temperatures, calls)):
            if call not in done:
                problem = CallFailed("timeout", late)
            elif (failure := call.exception()) is not None:
                problem = failure
            elif (reply := call.result()).text.strip():
                responses.append((Shown(slot, prompt, temperature, reply.text), reply.output_tokens))
        if len(responses) < wanted:
            raise problem
        return responses

    async def _tell(self, id: str, said: Mapping[str, Any]) -> None:
        learner = self._learner
        show = self._shown(id)
        feedback = _feedback(show, {kind: value for kind, value in said.items() if value is not None})
        score = aggregate(feedback)
        data = [{"kind": each.kind, "raw": each.raw, "score": each.score} for each in feedback]
        cell = (learner.run, show.number, 0, digest("feedback", str(learner.run), id), None, score)
        kept = encode(data[0] if len(data) == 1 else {"kind": "several", "raw": data, "score": score}, "the feedback")
        commits = self._writing()
        commits.put(Insert.EVALUATION, (*cell, kept, None, None, 0.0, time.time(), 0.0, 1, 0))
        await commits.safe(Insert.FEEDBACK, (learner.run, show.number, score))
        learner.catch_up()

    def _shown(self, id: str) -> Show:
        """The show of an id."""
        ledger, parts = self._ledger, _ID.fullmatch(str(id))
        row = None if parts is None else find_show(ledger, self._learner.run, int(parts[1]))
        if parts is None or row is None or not hmac.compare_digest(ledger.value(row.origin, ShowMark).key, parts[2]):
            raise UnknownShow(f"there is no show {str(id)!r:.60}: tell with the id of what `ask` returned")
        show: Show = ledger.value(row.candidate, Show)
        return Show(row.number, show.query, show.shown)

    async def _status(self) -> dict[str, int]:
        learner = self._learner
        learner.catch_up()
        return {"shows": learner.shows, "answered": learner.search.memory.answered, "open": learner.open_shows}

    async def _ranking(self) -> list[tuple[str, float]]:
        self._learner.catch_up()
        members = self._learner.ranking()
        return [(system_prompt(member.prompt, self.config.pinned), member.fitness) for member in members]

    async def _close(self) -> None:
        self._closed = True
        if self._broker is not None:
            await self._broker.close(GRACE)
        if self._learner.unsaved:
            self._save(self._writing())
        if self._commits is not None:
            await self._commits.flush()
            self._commits.close()
        self._commits = self._broker = None
        self._ledger.close()

    def _writing(self) -> Commits:
        """What writes to the file; after a failure (a full disk, a long lock) the next call begins again."""
        if self._commits is None or self._commits.error is not None:
            self._commits = Commits(self._ledger)
            self._broker = CallBroker(self._ledger, self._commits, run=self._learner.run)
        if self._learner.unsaved >= CHECKPOINT:
            self._save(self._commits)
        return self._commits

    def _save(self, commits: Commits) -> None:
        """A checkpoint, and what `fanfold show` says of the critic."""
        learner = self._learner
        commits.put(Insert.SNAPSHOT, learner.save())
        rows = [(round(m.fitness, 3), round(m.evidence, 1), m.prompt.text) for m in learner.ranking()]
        text = f"{learner.shows} shows, {learner.search.memory.answered} with feedback, {learner.open_shows} open"
        section = Section("Prompts", text, ("fitness", "evidence", "prompt"), tuple(rows))
        commits.put(Insert.SUMMARY, (learner.run, encode(Summary({"best_prompt": rows[0][2]}, (section,)))))

    @functools.cached_property
    def _model(self) -> Model:
        return answering(self.config.model, self.config.base_url, self.config.reasoning_effort)


def _recorded(ledger: Ledger, run: int, name: str) -> dict[str, Any]:
    """How a critic was opened before."""
    meta = ledger.info(run).meta
    if not meta.get("online"):
        raise ConfigError(f"{name!r} in {ledger.path} is a run of a study: give another name= or another file")
    return dict(meta)


def _feedback(show: Show, said: Mapping[str, Any]) -> list[Feedback]:
    """What was said of a show, read as the kinds of feedback that it can be."""
    kinds = {ALIASES.get(name, name): name for name in said}
    fitting = {"preference"} if len(show.shown) == 2 else set(KINDS) - {"preference"}
    if not kinds or not fitting.issuperset(kinds):
        known = "preferred='A', 'B' or 'tie'" if len(show.shown) == 2 else "rating=, reward=, thumbs= or another kind"
        many = "two answers were" if len(show.shown) == 2 else "one answer was"
        raise ConfigError(f"{many} shown, and {', '.join(said) or 'nothing'} was said: give {known}")
    return [read(kind, said[name], show.shown[0].response) for kind, name in kinds.items()]
