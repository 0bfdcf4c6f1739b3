"""What a search for prompts found: the winner on validation, its score on held-out problems, where it came from."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from fanfold import drawings
from fanfold.encoding import encode
from fanfold.identity import told
from fanfold.prompting.genome import Genome, difference, outline, template
from fanfold.prompting.writing import record_of
from fanfold.running import Go, Run
from fanfold.stats import paired
from fanfold.strategies import Sweep
from fanfold.strategies.pareto import fronts
from fanfold.studies.prompts.against import Course, cells, course, held_out_curves
from fanfold.studies.prompts.config import FINALISTS, PromptsConfig
from fanfold.studies.prompts.evaluator import PromptsEvaluator, cases, expected
from fanfold.studies.prompts.history import SearchHistory
from fanfold.studies.prompts.lineage import lineage
from fanfold.studies.prompts.objectives import by_problem, interval_of, oks, points_of
from fanfold.studies.prompts.shown import at_list_price, short_prompt
from fanfold.study import Study
from fanfold.summary import Section, Summary
from fanfold.tasks import Problem, Split, Task, sandbox
from fanfold.tasks.grading import CodeTests
from fanfold.types import Ok, Result

#: Rows of the lists that could be long.
MOST_ROWS = 40
#: The parts of a split that prompts are scored on; a narrow screen shows the first.
PARTS = ("held-out", "validation", "train")
_CALLS = "{made} in the search; {saved} of {full} saved by dropping prompts early; {held_out} on held-out problems"


@told(
    problems="the problems to search on, to choose by or to score the winner on are others: rows of the file were "
    "added, changed or removed"
)
@dataclass(frozen=True)
class PromptsConclusion:
    """Compares the finalists on validation problems, then scores winner and first prompt on held-out ones, once."""

    config: PromptsConfig
    task: Task
    split: Split
    evaluate: PromptsEvaluator
    #: Other searches that get the same calls, by name.
    rivals: Mapping[str, Study[Any]] = field(default_factory=dict)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a summary depends on, besides the search."""
        usual = PromptsConfig()
        said = {name: value for name, value in vars(self.config).items() if value != getattr(usual, name)}
        return {"config": said, "problems": encode(self.split)}

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        search = SearchHistory(list(run.results()), self.evaluate.calibration)
        if not search.finalists(1):
            return Summary({"winner": None}, (Section("No winner", "no prompt was scored on all problems"),))
        winner, validated, regret = await self._winner(search, go)
        first = search.first
        courses = await self._courses(search, winner, validated, go)
        flat = {"all examples": search.baseline, "nearest examples": search.nearest, "first prompt": first}
        ways = [genome for course in courses for _, genome in reversed(course.points)]
        # The nearest last: earlier versions did not score it, and resumed runs keep the order of the others.
        named = [winner, search.baseline, first, *ways, search.nearest]
        prompts = [genome for genome in dict.fromkeys(named) if genome is not None]
        held = await self._scored(prompts, self.split.held_out, "held-out", go)
        accuracy = {genome: interval_of(result).estimate for genome, result in held.items()}
        calls = {**search.calls(run), "held_out": cells(held.values())}
        priced = at_list_price(run.view.costs(siblings=False), calls, self.config.price_as)
        spent = "; ".join([_CALLS.format(**calls), *priced])
        gain = _gain(held.get(winner), None if first == winner or first is None else held.get(first))
        figures = {
            "winner": {"genome": winner, "text": winner.head(), "examples": list(winner.examples)},
            "template": self._template(winner),
            "train": _figure(search.training(winner)),
            "validation": _figure(validated.get(winner)),
            "held_out": _figure(held.get(winner)),
            "first_held_out": None if first is None else _figure(held.get(first)),
            "baseline_held_out": None if search.baseline is None else _figure(held.get(search.baseline)),
            "nearest_held_out": None if search.nearest is None else _figure(held.get(search.nearest)),
            "expected_regret": regret,
            "overfit": _overfit(search.training(winner), held.get(winner)),
            **gain,
            "calls": calls,
            "against": {
                course.name: [(made, accuracy.get(genome)) for made, genome in course.points] for course in courses
            },
        }
        shown = outline(winner, self.evaluate.shots, "...")
        sections = [
            Section("Prompt", shown, brief=short_prompt(winner)),
            self._table({"winner": winner, **flat}, courses, search, validated, held),
            *held_out_curves(courses, flat, accuracy),
            *_failed_text(held.get(winner)),
            *self._by_model(held.get(winner)),
            *_gain_text(gain),
            *_regret_text(regret),
            Section("Calls", spent, brief=spent),
            *record_of(self.config.writer, search.results),
            *_code(self.task.grader),
            *self._front(search),
            lineage(search.results if winner.biases else search.told, winner),
            Section("Ways of making prompts", "", ("way", "prompts", "better than the parent"), search.ways, brief=""),
        ]
        if first is not None and first != winner:
            words = drawings.diff(first.head(), winner.head(), before_name="first prompt", after_name="winner")
            changed = difference(first, winner)
            sections.append(Section("Against the first prompt", changed, brief="", drawings=(words,)))
        sections.append(self._cases(held.get(winner)))
        return Summary(msgspec.to_builtins(figures), tuple(sections))

    def _table(
        self,
        named: Mapping[str, Genome | None],
        courses: Sequence[Course],
        search: SearchHistory,
        validated: Mapping[Genome, Result[Any]],
        held: Mapping[Genome, Result[Any]],
    ) -> Section:
        """The accuracy of the named prompts, and of what other searches found."""
        scored = {
            name: (held.get(genome), validated.get(genome), search.training(genome))
            for name, genome in named.items()
            if genome is not None and (name == "winner" or genome != named["winner"])
        }
        rows = [(name, *map(interval_text, parts)) for name, parts in scored.items()]
        rows += [
            (f"{rival.name} search", *map(interval_text, (held.get(rival.winner), rival.validation, rival.train)))
            for rival in courses[1:]
        ]
        dots = [
            drawings.dot(f"{name}, {part}", interval_of(result))
            for name, parts in scored.items()
            for part, result in zip(PARTS, parts)
            if result is not None
        ]
        dots += [
            drawings.dot(f"{rival.name} search, held-out", interval_of(held[rival.winner]))
            for rival in courses[1:]
            if rival.winner in held
        ]
        sizes = {name: len(getattr(self.split, name.replace("-", "_"))) for name in PARTS}
        columns = ("prompt", *(f"{name} ({size * len(self.config.model)})" for name, size in sizes.items()))
        brief = "" if courses else None  # the chart says the same
        drawn = drawings.intervals(dots, unit="accuracy", low=0.0, high=1.0)
        return Section("Accuracy, with 95 % intervals", "", columns, tuple(rows), brief=brief, drawings=(drawn,))

    def _template(self, winner: Genome) -> dict[str, Any]:
        """The winner as it is sent: what stands before and after the input, and the settings of the request."""
        settings = self.evaluate.settings(winner, self.config.model[0])
        parts = template(winner, self.evaluate.shots)
        requests = {name: self.evaluate.request(winner, name) for name in self.config.model}
        parts |= {"form": self.task.form} if self.task.form else {}
        return {**parts, "model": self.config.model[0], "stop": [], **settings, "requests": requests}

    async def _courses(
        self, search: SearchHistory, winner: Genome, validated: Mapping[Genome, Result[Any]], go: Go
    ) -> list[Course]:
        """How this search and its rivals went, each with as many calls."""
        courses = [course(self.config.kind, search, winner, validated)] if self.rivals else []
        for name, rival in self.rivals.items():
            history = SearchHistory(list((await go(name, rival)).results()), self.evaluate.calibration)
            if history.finalists(1):
                best, scored, _ = await self._winner(history, go, f"{name}-")
                courses.append(course(name, history, best, scored))
        return courses

    async def _winner(
        self, search: SearchHistory, go: Go, whose: str = ""
    ) -> tuple[Genome, dict[Genome, Result[Any]], float | None]:
        """The finalist that is right most often on train and validation together, and what that choice may cost.

        The prompt with all examples is always among them, and of equals it wins, then the shorter.  Of prompts that are
        always right, the cheapest to ask wins.
        """
        most = self.config.contenders(len(self.split.validation) * len(self.config.model))
        finalists = search.finalists(max(1, most))
        if len(finalists) == 1 or not self.split.validation:
            return finalists[0], {}, None
        # One of many may also be better as it was asked, without its biases.
        plain = search.asked(finalists[0]) if most > FINALISTS else None
        beside = [each for each in (plain, search.baseline) if each is not None and each not in finalists]
        finalists = [*finalists[: most - len(beside)], *beside]
        validated = await self._scored(finalists, self.split.validation, f"{whose}validation", go)
        scores = {
            genome: [
                sum(own) / len(own)
                for result in (search.any_training(genome), validated.get(genome))
                if result is not None
                for own in by_problem(result).values()
            ]
            for genome in finalists
        }

        def standing(genome: Genome) -> tuple[float, float, bool, int]:
            own = scores[genome]
            mean = sum(own) / max(1, len(own))
            return mean, search.saving(genome, mean), genome == search.baseline, -len(genome.head().split())

        winner = max(finalists, key=standing)
        others = (scores[each] for each in finalists if each != winner)
        return winner, validated, expected_regret([scores[winner], *others])

    async def _scored(
        self, genomes: Sequence[Genome], problems: Sequence[Problem], word: str, go: Go
    ) -> dict[Genome, Result[Any]]:
        """The genomes' results on these problems; none for those the money did not reach, or that mostly failed."""
        if not problems:
            return {}
        beside: Study[Any] = Study(Sweep(list(genomes)), self.evaluate, cases(problems, self.config.model), name=word)
        run = await go(word, dataclasses.replace(beside, seed=self.config.seed))
        scored = [result for result in run.results() if 2 * len(oks(result)) > len(result.outcomes)]
        return {msgspec.convert(result.candidate, Genome): result for result in scored}

    def _by_model(self, held: Result[Any] | None) -> list[Section]:
        if held is None or len(self.config.model) == 1:
            return []
        rows = []
        for name in self.config.model:
            own = {case: outcome for case, outcome in held.outcomes.items() if case.endswith(f"@{name}")}
            rows.append((name, interval_text(dataclasses.replace(held, outcomes=own))))
        return [Section("The winner on each model, held-out", "", ("model", "accuracy"), tuple(rows))]

    def _front(self, search: SearchHistory) -> list[Section]:
        objectives = self.config.objectives
        if len(objectives) == 1 or not search.complete:
            return []
        points = points_of(search.complete, objectives)
        rows = [(search.complete[at].number, *points[at]) for at in next(fronts(points))]
        return [Section("Pareto front of the search", "", ("trial", *objectives), tuple(sorted(rows)[:MOST_ROWS]))]

    def _cases(self, held: Result[Any] | None) -> Section:
        if held is None:
            return Section("Held-out problems", "not scored")
        answers = {case.id: expected(case.data["answer"]) for case in cases(self.split.held_out, self.config.model)}
        rows = [(case, answers.get(case, ""), *_answer(outcome)) for case, outcome in held.outcomes.items()]
        wrong_first = sorted(rows, key=lambda row: row[3] == "right")
        columns = ("problem", "expected", "said", "")
        return Section("Held-out problems", "", columns, tuple(wrong_first[:MOST_ROWS]), brief="")


def interval_text(result: Result[Any] | None) -> str:
    figure = _figure(result)
    if figure is None or figure["accuracy"] is None:
        return "-"
    return "{accuracy:.3f} [{low:.3f}, {high:.3f}]".format(**figure)


def _figure(result: Result[Any] | None) -> dict[str, Any] | None:
    if result is None:
        return None
    interval = interval_of(result)
    return {"accuracy": interval.estimate, "low": interval.low, "high": interval.high, "n": interval.n}


def _overfit(train: Result[Any] | None, held: Result[Any] | None) -> float | None:
    """How much of the training score did not carry over."""
    if train is None or held is None or train.score is None or held.score is None:
        return None
    return train.score - held.score


def _gain(winner: Result[Any] | None, first: Result[Any] | None) -> dict[str, Any]:
    if winner is None or first is None:
        return {"gain": None, "gain_p": None}
    mine, other = by_problem(winner), by_problem(first)
    pairs = {
        problem: list(zip(scores, other[problem]))
        for problem, scores in mine.items()
        if len(scores) == len(other.get(problem, ()))
    }
    found = paired(pairs, within=(0.0, 1.0))
    return {"gain": found.difference.estimate, "gain_p": found.p}


def expected_regret(scores: Sequence[Sequence[float]], draws: int = 2000) -> float:
    """How much better the best of several prompts is expected to be than the first of them, given their scores.

    Each prompt's accuracy is believed to be Beta(1 + right, 1 + wrong); the draws are always the same.
    """
    rng = random.Random(0)
    beliefs = [(1.0 + sum(own), 1.0 + len(own) - sum(own)) for own in scores]
    total = 0.0
    for _ in range(draws):
        drawn = [rng.betavariate(right, wrong) for right, wrong in beliefs]
        total += max(drawn) - drawn[0]
    return total / draws


def _failed_text(held: Result[Any] | None) -> list[Section]:
    """How many evaluations of the winner have no score."""
    if held is None or not held.failures:
        return []
    kind, count = Counter(failure.kind for failure in held.failures.values()).most_common(1)[0]
    others = "" if count == len(held.failures) else f", {count} of them"
    counted = f"{len(held.failures)} of {len(held.outcomes)} of the winner's evaluations failed{others} as {kind!r}"
    return [Section("Held-out problems without a score", f"{counted}, and are left out of its accuracy")]


def _regret_text(regret: float | None) -> list[Section]:
    if regret is None:
        return []
    text = f"{regret:.3f} of accuracy is what another finalist may be expected to have more than the winner"
    return [Section("Expected regret of the choice", text, brief="")]


def _gain_text(gain: Mapping[str, Any]) -> list[Section]:
    if gain["gain"] is None:
        return []
    against = f"against the first prompt (p = {gain['gain_p']:.2g}, paired by problem)"
    return [Section("Gain", f"{gain['gain']:+.3f} on held-out problems {against}", brief="")]


def _code(grader: Any) -> list[Section]:
    """How code that models wrote was run, where any was."""
    if not isinstance(grader, CodeTests):
        return []
    held = ", ".join(sorted(sandbox.guards()))
    lacking = sandbox.missing()
    text = f"written by models, run with the guards: {held}"
    return [Section("Code", f"{text}; UNSAFE, without {lacking}" if lacking else text)]


def _answer(outcome: Any) -> tuple[str, str]:
    """What was said, and whether it is right."""
    if not isinstance(outcome, Ok):
        return outcome.kind, "failed"
    mark = "right" if outcome.score >= 1.0 else f"{outcome.score:.2g}" if outcome.score > 0 else "wrong"
    return outcome.data["said"], mark
