"""What must stay the same for a run to be resumed, and what has changed."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fanfold import __version__
from fanfold.encoding import digest, encode
from fanfold.fingerprints import CODE, REST, Fingerprint, fingerprint
from fanfold.fingerprints.values import hashed

if TYPE_CHECKING:
    from fanfold.study import Study

#: How many changes an error names.
_NAMED = 6
#: Where a conclusion has the config of its study.
_CONFIG = "conclude.config."
#: What decides the results of evaluations.
_OF_RESULTS = frozenset(("evaluate", "seed", "objective", "minimize"))
REMEDY = "give that object an attribute `fingerprint` (a text that changes when results would), or make it a dataclass"


T = TypeVar("T")


def formerly(*names: str) -> Callable[[T], T]:
    """Say under which names earlier versions recorded a class or function, so that their runs continue."""

    def mark(named: T) -> T:
        named.__formerly__ = names  # type: ignore[attr-defined]
        return named

    return mark


def told(**words: str) -> Callable[[T], T]:
    """Say in words what it means that a setting in a fingerprint is another, where values say nothing."""

    def mark(named: T) -> T:
        named.__told__ = words  # type: ignore[attr-defined]
        return named

    return mark


@dataclass(slots=True)
class Changes:
    """What is no longer as it was recorded."""

    #: What a run cannot go on with, by what it belongs to: `evaluate`, `strategy`, `seed`, ...
    refused: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    #: Whether the record is of a version that kept less of the evaluator, and what is there cannot be compared.
    older: bool = False

    @property
    def remedy(self) -> str:
        """What to do where a run cannot continue."""
        if self.refused.keys() == {"evaluate"}:
            return (
                "Undo the change, or give the new study a new run name; where only the evaluator changed and its old "
                "results still count, accept that (accept_changes=True, --accept-changes)"
            )
        kept = self.refused.keys().isdisjoint(_OF_RESULTS)
        how = ", with reuse='ledger' (--reuse ledger), which takes over finished evaluations that are the same"
        drawn = (
            ". If a value is other in every process, such as a random name, give the strategy an attribute "
            "`fingerprint` (a text that changes when its settings do)"
        )
        own = drawn if "strategy" in self.refused else ""
        return f"Undo the change, or give the new study a new run name{how if kept else ''}{own}"


@dataclass(frozen=True)
class Identity:
    """A study as a ledger keeps it, and the fingerprints of what it is made of."""

    record: dict[str, Any]
    prints: dict[str, Fingerprint]
    #: Names under which earlier versions recorded what has a role.
    former: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: What it means, by path, that something is another.
    words: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, study: Study[Any]) -> Identity:
        prints = {
            "evaluate": _of_evaluator(study),
            "aggregate": fingerprint(study.aggregate, "aggregate"),
            # A run uses copies of these two, so what they hold is what they were given.
            "strategy": fingerprint(study.strategy, "strategy", untouched=True),
            "schedule": fingerprint(study.schedule, "schedule", untouched=True),
        }
        if study.conclude is not None:
            prints["conclude"] = fingerprint(study.conclude, "conclude")
        record = {
            "strategy": type(study.strategy).__qualname__,
            "schedule": type(study.schedule).__qualname__,
            "evaluate": prints["evaluate"].text,
            "aggregate": prints["aggregate"].text,
            "cases": digest(encode(study.seeded_cases, "the cases")).hex(),
            "seed": study.seed,
            "window": study.effective_window,
            "in_order": study.in_order,
            "failed_score": study.failed_score,
            "minimize": study.minimize or None,  # None, as in the records of versions that did not know it
            "objective": study.objective,
            "parts": {role: each.parts for role, each in prints.items()},
            "version": __version__,
        }
        former = {role: _former(getattr(study, role)) for role in ("evaluate", "aggregate", "strategy")}
        words = {
            f"{role}.{name}": text
            for role in ("evaluate", "conclude")
            for name, text in inspect.getattr_static(getattr(study, role), "__told__", {}).items()
        }
        return cls(record, prints, former, words)

    @property
    def basis(self) -> str:
        """What a checkpoint of the search depends on: it is used only where all of that is the same."""
        return digest(__version__, *(self.prints[role].text for role in ("strategy", "schedule", "aggregate"))).hex()

    def unknown(self, *roles: str) -> str:
        """The paths in these that cannot be written down, with what is there; empty where all can be."""
        found = {
            path: what for role in roles if role in self.prints for path, what in self.prints[role].unknown.items()
        }
        listed = [f"{path} ({what})" for path, what in list(found.items())[:_NAMED]]
        return ", ".join(listed) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")

    def changes(self, recorded: Mapping[str, Any], before: Any = None, fields: Any = None) -> Changes:
        """What a study has that is not as in the record of its run.

        Where it is made of a config, `before` are the fields of the recorded one and `fields` those of this (else what
        concludes it may have it): a field that is another says more than all that follows from it.
        """
        recorded, found = _renamed(recorded), Changes()
        for key, value in self.record.items():
            if key not in ("evaluate", "aggregate", "parts", "version") and recorded.get(key) not in (
                value,
                *self.former.get(key, ()),
            ):
                said = f"{key} was {recorded.get(key)!r}, is {value!r}"
                found.refused[key] = said if key != "cases" else "its cases are others, or have other data or seeds"
        for role in ("evaluate", "aggregate"):
            self._compare_text(role, recorded, found)
        for role in ("strategy", "schedule", "conclude"):
            self._compare_parts(role, recorded, found)
        for role in self.prints:
            if where := self.unknown(role):
                found.notices.append(
                    f"whether {role} is the one that this run began with cannot be told, for this cannot be written "
                    f"down: {where}. To have it told, {REMEDY}"
                )
        others = list(other_fields(before or {}, fields or {})) or self._other_config(recorded)
        if found.refused and others:
            roles = [role for role in found.refused if role != "strategy"] or ["settings"]
            found.refused = {**dict.fromkeys(roles, ""), roles[0]: _listed(others)}
        return found

    def used(self, study: Study[Any], recorded: str) -> None:
        """Remember the evaluator after a run in which it was recorded: its use does not change the study."""
        with contextlib.suppress(RuntimeError):  # an evaluation that was left behind may still be changing it
            after = _of_evaluator(study)
            if _code(after) == _code(self.prints["evaluate"]):
                _USED.setdefault(after.text, set()).update({recorded, *_USED.get(recorded, ())})

    def _compare_text(self, role: str, recorded: Mapping[str, Any], found: Changes) -> None:
        now, before = self.prints[role], str(recorded.get(role))
        if now.text == before or before in _USED.get(now.text, ()):
            return
        parts = recorded.get("parts")
        was, at, _ = before.partition("@")
        if parts is None and not now.own and at and ("." not in was or was in (now.name, *self.former.get(role, ()))):
            found.older = found.older or role == "evaluate"  # of version 0.1.0, which wrote it down in another way
            return
        recorded_parts, beside = (parts or {}).get(role, {}), _beside(role, now)
        if now.own:
            named = list(self._differences(beside, recorded_parts, common=True))
        else:
            named = [] if was != now.name else list(self._differences(now.parts, recorded_parts))
        is_now = now.text if now.own or was == now.name else now.name
        said = f"{role} was {(was if is_now == now.name else before)!r}, is {is_now!r}"
        if beside:
            said += f" (which stands for {', '.join(path.removeprefix(f'{role}.') for path in beside)})"
        found.refused[role] = _listed(named) if named else said

    def _compare_parts(self, role: str, recorded: Mapping[str, Any], found: Changes) -> None:
        before = (recorded.get("parts") or {}).get(role)
        if before is None or role not in self.prints or role in found.refused:
            return
        # Another version of Fanfold may keep other attributes; what both have is compared.
        common = recorded.get("version") != self.record["version"]
        now = self.prints[role].parts
        settings = list(self._differences(_settings(role, now), _settings(role, before), common))
        code = list(self._differences(now, before, common)) if not settings else []
        if settings and role != "conclude":
            found.refused[role] = _listed(settings)
        elif settings or code:
            found.notices.append(f"{role} has changed since this run began: {_listed(settings or code)}")

    def _other_config(self, recorded: Mapping[str, Any]) -> list[str]:
        """Differences of the config that the study's conclusion names, if it names one."""
        was, now = (recorded.get("parts") or {}).get("conclude"), self.prints.get("conclude")
        if was is None or now is None:
            return []
        known, is_now = (
            {path.removeprefix(_CONFIG): value for path, value in parts.items() if path.startswith(_CONFIG)}
            for parts in (was, now.parts)
        )
        readable = (said for said in self._differences(is_now, known) if " #" not in said)
        return [said.replace("not there", "the default") for said in readable]

    def _differences(self, now: Mapping[str, str], before: Mapping[str, str], common: bool = False) -> Iterator[str]:
        for path in sorted((now.keys() & before.keys()) - {REST} if common else now.keys() | before.keys()):
            was, new = before.get(path), now.get(path)
            if was == new or (new is not None and was == f"#{hashed(new)[:12]}"):  # as it was once shown
                continue
            if path.startswith(CODE):
                yield f"the {path} changed" if was and new else f"the {path} is {'no longer' if was else 'newly'} used"
            else:
                yield self.words.get(path) or f"{path} was {was or 'not there'}, is {new or 'not there'}"


#: What evaluations in this process made of their evaluators (a client in use, a fitted model), and what those were
#: recorded as, both by fingerprint.
_USED: dict[str, set[str]] = {}


def _of_evaluator(study: Study[Any]) -> Fingerprint:
    return fingerprint(functools.partial(study.evaluate, **study.shared) if study.shared else study.evaluate)


def _code(print_: Fingerprint) -> dict[str, str]:
    return {path: value for path, value in print_.parts.items() if path.startswith(CODE)}


def _former(value: Any) -> tuple[str, ...]:
    """Read without calling anything of the user's."""
    names: tuple[str, ...] = inspect.getattr_static(value, "__formerly__", ())
    return names


def _renamed(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """A record with today's names: version 0.1.0 called what combines the scores of the cases `fold`."""
    now = {("aggregate" if key == "fold" else key): value for key, value in recorded.items()}
    if "fold" in (parts := now.get("parts") or {}):
        now["parts"] = {("aggregate" if key == "fold" else key): value for key, value in parts.items()}
    return now


def _beside(role: str, print_: Fingerprint) -> dict[str, str]:
    """What an object's own word stands for, where it says so; earlier versions did not write that down."""
    return {path: value for path, value in print_.parts.items() if print_.own and path != f"{role}.fingerprint"}


def _settings(role: str, parts: Mapping[str, str]) -> dict[str, str]:
    """What the object itself holds.  What its code reaches is code: replay shows whether it still asks the same."""
    return {path: value for path, value in parts.items() if path.startswith(f"{role}.") or path == REST}


def other_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """In words, which of the fields that two configs both have are not the same."""
    for name in sorted(before.keys() & now.keys()):
        was, new = (list(value) if isinstance(value, tuple) else value for value in (before[name], now[name]))
        if encode(was) != encode(new):
            yield f"{name} was {was!r:.80}, is {new!r:.80}"


def _listed(differences: list[str]) -> str:
    more = len(differences) - _NAMED
    return "; ".join(differences[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
