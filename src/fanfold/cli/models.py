"""`fanfold simulate` and `estimate`, and `run --rehearse`: everything about models but asking them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fanfold.cli.options import assumptions, rehearsal_options, run_flags
from fanfold.cli.output import (
    complete_target,
    duration,
    examples,
    machine_readable,
    output_options,
    print_json,
    quiet,
    say,
    shortened,
    table,
)
from fanfold.cli.run import RunCommand, loaded_target, target_of
from fanfold.texts import money

if TYPE_CHECKING:
    from fanfold.executors import Executor
    from fanfold.ledger import CallFacts
    from fanfold.rehearsal import Assumptions, Bound, Forecast, Usage
    from fanfold.study import Study

_CAVEAT = (
    "Replies are made up: scores, and what a search does because of them, are not predicted; how long replies are is "
    "assumed (--reply-tokens)."
)


class SimulateCommand(click.Command):
    """`simulate`, whose options are the simulator's own."""

    def get_help(self, ctx: click.Context) -> str:
        import contextlib
        import io

        from fanfold.simulator.__main__ import main

        own = io.StringIO()
        with contextlib.redirect_stdout(own), contextlib.suppress(SystemExit):
            main(["--help"])
        return f"{super().get_help(ctx)}\n\nOf the simulator:\n\n{own.getvalue()}"


@click.command(
    cls=SimulateCommand,
    short_help="Serve simulated models over HTTP.",
    context_settings={"ignore_unknown_options": True},
    epilog=examples("fanfold simulate --port 8089", "fanfold simulate --rpm 1200 --latency 0.5,0.4"),
)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@output_options
@click.pass_context
def simulate(ctx: click.Context, options: tuple[str, ...]) -> None:
    """Serve a fake of the installed providers, with their limits, errors and batches, until Ctrl-C."""
    import contextlib
    import io
    import sys

    from fanfold.simulator.__main__ import main

    talk = sys.stderr if machine_readable() else io.StringIO() if quiet() else sys.stdout
    with contextlib.redirect_stdout(talk):
        code = main(options)
    if machine_readable():
        print_json({"ok": code == 0})
    ctx.exit(code)


# -- rehearsals ------------------------------------------------------------------------------------------------------


def rehearsed(
    ctx: click.Context, target: str, flags: Sequence[str], values: Mapping[str, Any], assumed: Mapping[str, Any]
) -> None:
    """`fanfold run TARGET --rehearse`."""
    from fanfold.rehearsal import rehearse

    given = _assumptions(assumed)
    study, executor, world = _unkeyed(ctx, target, flags, values)
    cache = "off" if values["cache"] == "off" else "on"  # there is no ledger to refresh or to replay
    forecast = rehearse(study, executor, given, answer=world, reuse=values["reuse"] or "run", cache=cache)
    if machine_readable():
        print_json(
            {"study": study.name, **dataclasses.asdict(forecast), "calls": forecast.calls, "cost": forecast.cost}
        )
    say(f"{study.name} was rehearsed with simulated models: nothing was sent, paid or kept")
    _say_forecast(forecast)


def _say_forecast(forecast: Forecast) -> None:
    say(
        f"\n{forecast.trials} trials, {forecast.evaluations} evaluations, {forecast.failures} failures; "
        f"stopped: {forecast.reason}"
    )
    if forecast.failure is not None:
        say(f"the first failure, perhaps of the made-up reply only: {shortened(forecast.failure)}")
    if not forecast.usage:
        say("No model was asked, so there is nothing to predict: computing takes no time on the virtual clock.")
        return
    simulated = all(usage.simulated for usage in forecast.usage)
    say(f"time {duration(forecast.seconds)}, cost {money(forecast.cost, simulated)}\n")
    head = ["model", "calls", "refused", "in batches", "input tokens", "output tokens", "cost", "limits", "used"]
    say(table(head, [_usage_row(each) for each in forecast.usage], right=head[1:7]))
    say(f"\n{_CAVEAT}")


def _usage_row(usage: Usage) -> list[str]:
    counts = (usage.calls, usage.refused, usage.batched, usage.input_tokens, usage.output_tokens)
    limits = ", ".join(f"{limit:g} {name}" for name, limit in usage.limits.items()) or "none told"
    used = "-" if usage.utilisation is None else f"{usage.utilisation:.0%}"
    return [usage.model, *map(str, counts), money(usage.cost, usage.simulated), limits, used]


@click.command(
    cls=RunCommand,
    short_help="Say what a run would cost and how long it would take.",
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "fanfold estimate prompts --model PROVIDER/MODEL",
        "fanfold estimate my_study.py --executor batch:auto --sample 20 --json",
    ),
)
@click.argument("target_", metavar="[TARGET]", required=False, shell_complete=complete_target)
@click.argument("flags", metavar="[FIELDS]...", nargs=-1, type=click.UNPROCESSED)
@run_flags(planned=True)
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Trials to rehearse.  [by the study's window]")
@rehearsal_options
@output_options
@click.pass_context
def estimate(
    ctx: click.Context, /, target_: str | None, flags: tuple[str, ...], sample: int | None, **values: Any
) -> None:
    """Say what a run of TARGET would cost and how long it would take, low, expected and high; nothing is sent.

    A few trials are rehearsed with simulated models and extrapolated to all that the study's rules allow. Low: replies
    as short as the shortest in the rehearsal. High: replies as long as max_tokens allows, and every case run. Both
    allow another 10 % for how tokens are counted. The end of the study, such as held-out cases, is included.
    """
    from fanfold.rehearsal import estimate as estimated

    target, flags = target_of(target_, flags)
    study, executor, _ = _unkeyed(ctx, target, flags, values)
    forecast = estimated(study, executor, _assumptions(assumptions(values)), sample)
    if machine_readable():
        print_json({"study": study.name, "stop": repr(study.stop), **dataclasses.asdict(forecast)})
    many = (
        f"{forecast.trials} trials"
        if not forecast.endless
        else f"each {forecast.trials} trials (no end of it is known: --max-trials sets one)"
    )
    say(f"{study.name}, {many} on {forecast.cases} cases, judged by a rehearsal of {forecast.sample} trials\n")
    head = ["", "cost", "time", "calls", "input tokens", "output tokens"]
    bounds = {"low": forecast.low, "expected": forecast.expected, "high": forecast.high}
    say(table(head, [bound_row(name, bound, forecast.simulated) for name, bound in bounds.items()], right=head[1:]))
    if forecast.end.calls:
        cost = money(forecast.end.cost, forecast.simulated)
        say(f"\nThe end of the study (such as held-out cases) is included: {forecast.end.calls} calls, {cost}.")
    if forecast.end_failure is not None:
        say(f"\nThe end of the study is not included: {shortened(forecast.end_failure)}")
    say_unpriced(forecast.expected)
    if forecast.cost_limit is not None and forecast.expected.cost is not None:
        say(f"\nIt stops before it has paid more than {money(forecast.cost_limit)}, whatever is done by then.")
    say(f"\nStopping rules: {study.stop!r}. Those that look at scores or time may end it earlier.\n{_CAVEAT}")


def say_unpriced(bound: Bound) -> None:
    """Say what to do about a cost that cannot be told."""
    if bound.cost is None:
        from fanfold.money import PRICE_REMEDY

        say(f"\nThe price is not known, so --max-cost cannot be kept: {PRICE_REMEDY}.")


def bound_row(name: str, bound: Bound, simulated: bool) -> list[str]:
    counts = (bound.calls, bound.input_tokens, bound.output_tokens)
    return [name, money(bound.cost, simulated), duration(bound.seconds), *map(str, counts)]


def _assumptions(given: Mapping[str, Any]) -> Assumptions:
    from fanfold.rehearsal import Assumptions
    from fanfold.simulator.config import Latency

    latency = {"latency": Latency.parse(given["latency"])} if "latency" in given else {}
    return Assumptions(**{**given, **latency})


def _unkeyed(
    ctx: click.Context, target: str, flags: Sequence[str], values: Mapping[str, Any]
) -> tuple[Study[Any], Executor, Any]:
    """The study that is named, with its stopping rules, loaded so that its models need no keys; executor and world."""
    from fanfold.rehearsal import rehearsing

    with rehearsing():
        loaded, options = loaded_target(ctx, target, flags, values)
    study = dataclasses.replace(loaded.study, stop=options.limit(loaded.study.stop))
    return study, options.place(study.evaluate), loaded.world


# -- what a run asked ------------------------------------------------------------------------------------------------


def say_calls(facts: CallFacts) -> None:
    """The part of `fanfold show` about model calls; nothing for a run without any."""
    if facts.models:
        say("\nModel calls")
        head = ["model", "calls", "in batches", "input tokens", "output tokens", "cost", "retries", "p50", "p90", "p99"]
        rows = []
        for row in facts.models:
            unknown = f" and {row.unpriced} unknown" if row.unpriced and row.cost is not None else ""
            cost = money(row.cost, row.simulated) + unknown
            sums = [str(n) for n in (row.calls, row.batched, row.input_tokens, row.output_tokens)]
            times = [f"{seconds:.3g}s" for seconds in row.latency.values()] or ["-"] * 3
            rows.append([row.model, *sums, cost, str(row.retries), *times])
        say(table(head, rows, right=head[1:]))
    counts = facts.counts
    if facts.models or counts.cached:
        answered = f"{counts.cached} answered from the ledger, {counts.shared} by an equal call in flight, "
        used = "".join(f", {used:.0%} of {model}'s rate used" for model, used in counts.utilisation.items())
        say(f"{answered}{counts.failed} failed, {counts.refused} refused for a rate limit{used}")
    if facts.batches:
        say("\nProvider batches")
        rows = [[row.model, row.state, str(row.batches), str(row.requests)] for row in facts.batches]
        say(table(["model", "state", "batches", "requests"], rows, right=["batches", "requests"]))
