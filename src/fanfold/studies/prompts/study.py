"""Builds the study: what a config says becomes a strategy, an evaluator, cases and rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fanfold.errors import ConfigError
from fanfold.models import Model
from fanfold.models.catalogue import defined
from fanfold.models.naming import runs_here
from fanfold.models.pricing import list_price
from fanfold.models.providers import provider_names
from fanfold.prompting.breeding import PromptBreeder
from fanfold.prompting.calibration import LEAST, CalibratedDropping, Calibration
from fanfold.prompting.genome import SLOT, Candidate
from fanfold.prompting.guided import GuidedPrompts, RandomPrompts
from fanfold.prompting.material import Material
from fanfold.prompting.reflecting import WORDS, ReflectivePrompts
from fanfold.prompting.words import WordBreeder, first_words
from fanfold.schedule import Schedule
from fanfold.schedules import Acceptance, AllCases, PairedDropping, Racing
from fanfold.stop import MaxCalls, Plateau, Rule, Target, stop_after
from fanfold.strategies import Genetic
from fanfold.strategies.breeding import Breeder
from fanfold.strategies.generations import Convergence, Generations
from fanfold.strategies.reflective import ShownCase
from fanfold.strategy import Strategy
from fanfold.studies.prompts.conclusion import PromptsConclusion
from fanfold.studies.prompts.config import FINALISTS, PromptsConfig
from fanfold.studies.prompts.evaluator import PromptsEvaluator, cases, shots
from fanfold.studies.prompts.objectives import diversity, merit
from fanfold.studies.prompts.space import (
    calibration_of,
    first_prompts,
    folds_of,
    least_room,
    local_context,
    material_of,
    seeds_of,
    shown_by,
    too_long,
)
from fanfold.study import Study
from fanfold.tasks import Split, Task, load
from fanfold.tasks.graders import settings_of
from fanfold.tasks.grading import CodeTests, unguarded
from fanfold.tasks.task import SETTINGS, Own, Size

#: How many prompts a writer proposes at the start, and how many examples it is shown.
PROPOSED, SHOWN = 3, 5
#: Held-out problems below which an accuracy says little, and examples below which a prompt shows little.
FEW, FEW_EXAMPLES = 30, 4
#: What looks like the place of an input in a prompt.
_PLACE = re.compile(r"\{+ ?\w+ ?\}+")
#: Settings of a task that is read from a file.
_OF_FILES = ("grader", "judge", "input_field", "answer_field", "id_field", "encoding")
#: How many prompts are tried, of a budget, after one that is always right.
PERFECT = 24
#: Calls up to which a prompt is dropped as soon as it is behind: more prompts are worth more than surer scores.
SCARCE = 400


def study(
    config: PromptsConfig, task: Task | None = None, make: Callable[[str], Model] | None = None
) -> Study[Candidate]:
    """The search that `config` describes; `task` takes the place of the one it names, `make` makes its models."""
    for name in _OF_FILES if task is not None else ():
        if getattr(config, name) is not None:
            raise ConfigError(
                f"{name} says how a file is read, and the task is made already: leave {name} out of the config, and "
                "give it to fanfold.tasks.load, as in load(rows, grader=..., input=..., answer=...)"
            )
    if not isinstance(task, Task | None):
        raise ConfigError(f"task must be a Task, not {type(task).__name__}: make one with fanfold.tasks.load(rows)")
    task = _guarded(task or _task(config), config.unsafe)
    split = task.split(config.seed, **_sizes(config, task))
    material, calibration = material_of(config, task, split), calibration_of(config, task, split)
    evaluate = PromptsEvaluator(
        task,
        shots(shown_by(config, split)),
        config.model,
        config.base_url,
        config.writer,
        config.max_tokens,
        config.temperature,
        config.preset,
        config.max_words,
        make,
        config.reasoning_effort,
        material,
        None if config.price_as is None else list_price(config.price_as),
        local_context(config, task, split, material.most_examples),
        calibration,
        {} if calibration is None else folds_of(split),
    )
    if config.kind in config.against:
        raise ConfigError(f"against names {config.kind}, which is the search itself: name another")
    rivals: dict[str, Study[Any]] = {
        name: _search(replace(config, search=name), task, split, evaluate) for name in config.against
    }
    return replace(
        _search(config, task, split, evaluate),
        conclude=PromptsConclusion(config, task, split, evaluate, rivals),
        remarks=_remarks(config, task, split, material.most_examples),
    )


def _search(config: PromptsConfig, task: Task, split: Split, evaluate: PromptsEvaluator) -> Study[Candidate]:
    """The search alone, without what is concluded from it."""
    return Study(
        _strategy(config, task, split, evaluate.material, evaluate.calibration),
        evaluate,
        cases(split.train, config.model),
        schedule=_schedule(config, evaluate.calibration),
        stop=_stop(config, split),
        window=config.window or (None if config.steady else min(4, config.population)),
        in_order=not config.steady,
        seed=config.seed,
        name="prompts",
    )


def _sizes(config: PromptsConfig, task: Task) -> dict[str, Size]:
    """The sizes of the split: of few calls, many prompts on a few problems tell more than a few on many."""
    train, validation = config.train, config.validation
    if config.calls is not None and config.guided:
        usual = task.sizes(examples=config.examples, held_out=config.held_out)
        if train is None:
            train = min(usual["train"], max(8, config.calls // 12))
        if validation is None:
            validation = min(usual["validation"], max(6, config.calls // 4 // (config.finalists or FINALISTS)))
    return task.sizes(examples=config.examples, train=train, validation=validation, held_out=config.held_out)


def _remarks(config: PromptsConfig, task: Task, split: Split, fitting: int) -> tuple[str, ...]:
    """What was inferred about a task from a file, and how few problems there are."""
    remarks = []
    if task.source and task.source != SETTINGS.get(task.name, {}).get("source"):
        remarks.append(f"{task.source} (--input-field, --answer-field, --grader, --max-tokens)")
    if isinstance(task.grader, Own) and task.grader.tried(problem := task.problems[0]) == 0:
        remarks.append(
            f"{task.grader} gives 0 to the right answer of problem {problem.id!r} ({problem.shown!r:.60}): it is "
            "called with the reply and the problem, whose answer is problem.answer"
        )
    if config.calls is not None:
        search = searching(config, split)
        prompts = search // max(1, len(split.train) * len(config.model) // 2)
        by = f" (half of them by {config.writer}, a call each)" if config.kind == "reflective" else ""
        rivals = "".join(f", as many for {name} search" for name in config.against)
        remarks.append(
            f"{config.calls:,} calls (--calls): about {prompts} prompts{by}, {config.calls - search} kept to choose "
            f"the winner{rivals}; {len(split.held_out) * len(config.model)} more for each prompt that is scored at "
            "the end"
        )
    wanted = min(len(shown_by(config, split)), FEW_EXAMPLES if config.max_examples is None else config.max_examples)
    if fitting < wanted:
        remarks.append(f"long texts: prompts show at most {fitting} of them as examples (--max-examples, --model)")
    if count := too_long(config, task):
        model, room = least_room(config)
        remarks.append(
            f"{count:,} of {len(task.problems):,} problems are probably longer than {model} reads ({room:,} "
            "tokens), and then count as wrong: shorten them, leave them out, or use another model (--model)"
        )
    own = [*seeds_of(config, ()), *_texts_in(config.template)]
    if foreign := sorted({place for text in own for place in _PLACE.findall(text)} - {SLOT}):
        remarks.append(
            f"your prompts have {foreign[0]} in them, which is sent as it is: the problem takes the place of {SLOT}"
        )
    if "cost" in config.objectives and config.price_as is None and any(map(runs_here, config.model)):
        remarks.append("a local model costs nothing: name one whose price counts (--price-as)")
    parts = {"examples": "to show", "train": "to search on", "validation": "to choose by", "held_out": "held out"}
    counts = ", ".join(f"{len(getattr(split, name))} {word}" for name, word in parts.items())
    if len(split.held_out) < FEW:
        remarks.append(
            f"few problems ({counts}): the interval of the result will be wide (--examples, --train, --validation, "
            "--held-out)"
        )
    return tuple(remarks)


def _texts_in(template: Any) -> list[str]:
    """The texts of a template, those inside its choices, too."""
    if template is None or isinstance(template, str):
        return [template] if template else []
    return [text for part in template for text in _texts_in(part)]


def run_options(config: PromptsConfig) -> dict[str, Any]:
    """Where it runs unless said otherwise."""
    return {"executor": f"async:{config.in_flight}"}


def _task(config: PromptsConfig) -> Task:
    grader = None if config.grader is None else settings_of(config.grader)
    kind = None if grader is None else grader["kind"]
    if config.judge is not None:
        if grader is None or kind not in ("judge", "pairwise"):
            raise ConfigError(f"judge={config.judge!r} is for the graders judge and pairwise, not {kind!r}")
        grader = {**grader, "model": config.judge}
    if grader is not None and kind in ("judge", "pairwise"):
        if "model" not in grader:
            raise ConfigError(f"the grader {kind!r} asks a model: name it with --judge, or as {kind}:model=MODEL")
        asked = str(grader["model"])
        if config.base_url and asked.partition("/")[0] not in provider_names() and not defined(asked):
            grader = {"base_url": config.base_url, **grader}  # a name that only the user's own server knows
        if config.reasoning_effort:
            grader = {"effort": config.reasoning_effort, **grader}
    room: dict[str, Any] = {} if config.max_tokens is None else {"max_tokens": config.max_tokens}
    return load(
        config.task,
        grader=grader,
        input=config.input_field,
        answer=config.answer_field,
        id=config.id_field,
        rows=config.rows,
        seed=config.seed,
        encoding=config.encoding,
        **room,
    )


def _guarded(task: Task, unsafe: bool) -> Task:
    """The task, refused now and not in every cell where its grader would run code without a guard."""
    if not isinstance(task.grader, CodeTests):
        return task
    if unsafe:
        return replace(task, grader=replace(task.grader, unsafe=True))
    if not task.grader.unsafe and (why := unguarded()):
        raise ConfigError(why)
    return task


def _schedule(config: PromptsConfig, calibration: Calibration | None) -> Schedule:
    kind = config.schedule or ("paired" if config.guided else "racing")
    schedule: Schedule = AllCases()
    if kind == "racing":
        schedule = Racing(config.error, step=config.step or 4)
    elif kind == "paired":
        scarce = config.calls is not None and config.calls <= SCARCE
        margin = 1.0 if scarce else 2.0
        if calibration is None:
            schedule = PairedDropping(config.step or (1 if scarce else 4), margin)
        else:  # a preference is not told from a single reply
            schedule = CalibratedDropping(config.step or LEAST, margin, calibration)
    return Acceptance(schedule) if config.kind == "reflective" else schedule


def _strategy(
    config: PromptsConfig, task: Task, split: Split, material: Material, calibration: Calibration | None
) -> Strategy[Any]:
    shown = shown_by(config, split)
    if config.guided:
        labels = task.labels[0] if task.labels else None
        first = first_prompts(config, task.seeds[:1], material, labels)
        if config.kind != "reflective":
            kind = RandomPrompts if config.kind == "random" else GuidedPrompts
            return kind(material, shots(shown), first, calibration)
        return ReflectivePrompts(
            first,
            writable=(WORDS,),
            propose=PROPOSED,
            examples=[ShownCase(problem.input, problem.shown, "") for problem in split.examples[:SHOWN]],
            beside=GuidedPrompts(material, shots(shown)),
        )
    breeder: Breeder[Any]
    if config.form == "words":
        own = seeds_of(config, ())
        lists = () if config.words.random else own or first_words()
        vocabulary = [*first_words(), *(clause for bank in task.clauses.values() for clause in bank)]
        breeder = WordBreeder(config.words, lists, vocabulary, task.labels[0], config.crossover_rate)
        seeds = breeder.seeds if own else []
    else:
        seeds = first_prompts(config, task.seeds or ("",), material, None)
        breeder = PromptBreeder(
            material, tuple(seeds), writer=config.writer is not None, crossover_rate=config.crossover_rate
        )
    elites, ranked = min(config.elites, config.population - 1), merit(config.objectives, config.weights)
    generations = None if config.until == Convergence() else Generations(config.until, elites, ranked, diversity)
    return Genetic(
        breeder=breeder,
        population=config.population,
        elites=elites,
        tournament=config.tournament,
        selection=config.selection,
        pressure=config.pressure,
        mutation_rate=config.mutation_rate,
        adaptive=config.adaptive,
        steady=config.steady,
        seeds=seeds[: config.population],
        merit=ranked,
        until=generations,
    )


def _stop(config: PromptsConfig, split: Split) -> Rule:
    trials = config.trials if config.calls is None else max(config.trials, config.calls)  # the calls are the limit
    rule = stop_after(trials, config.target, config.patience)
    if config.target is None and config.objectives == ("accuracy",) and not config.against:
        # Nothing on the training problems can tell a better prompt from a perfect one; but with a budget to spend, a
        # few more are found for the validation problems to choose from.
        rule |= Target(1.0) if config.calls is None else Target(1.0) & Plateau(PERFECT)
    return rule if config.calls is None else rule | MaxCalls(searching(config, split))


def searching(config: PromptsConfig, split: Split) -> int:
    """How many of the calls the search may make: a quarter is kept for the choice of the winner."""
    assert config.calls is not None
    row = len(split.train) * len(config.model)
    validation = len(split.validation) * len(config.model)
    kept = config.contenders(validation) * validation
    if config.calls - kept < 2 * row:
        raise ConfigError(
            f"{config.calls} calls are too few for a search: two prompts take {2 * row} on all problems to search on, "
            "and up to a quarter of the calls is kept to choose the winner; give "
            f"--calls {-(-8 * row // 3)} or more, or a smaller --train"
        )
    return config.calls - kept
