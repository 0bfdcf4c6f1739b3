"""The simulator from a shell: `python -m fanfold.simulator --port 8089 --rpm 1200 --latency 0.5,0.4`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from fanfold.errors import ConfigError, FanfoldError
from fanfold.simulator.config import Latency, SimulatorConfig
from fanfold.simulator.core import Simulator, addresses, installed_dialects
from fanfold.simulator.faults import KINDS, Faults
from fanfold.simulator.limits import AccountLimits
from fanfold.web.server import serve


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted; 0 on a clean stop, 2 when something was asked for that cannot be."""
    options = _parser().parse_args(argv)
    try:
        simulator = Simulator(_config(options))
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(simulator, options.host, options.port))
    except FanfoldError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


async def _serve(simulator: Simulator, host: str, port: int) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve(simulator, host=host, port=port) as url:
        print(f"simulator at {url}")
        print("  " + "  ".join(f"{variable}={address}" for variable, address in addresses(url).items()))
        print(f"  bill: {url}/_simulator/ledger  faults: POST {url}/_simulator/faults")
        print("ready", flush=True)
        await stop.wait()
    with contextlib.suppress(BrokenPipeError):  # whoever started us may be gone
        print(
            f"stopped; {len(simulator.charges)} requests charged, {len(simulator.billing.batches)} batches", flush=True
        )


def _config(options: argparse.Namespace) -> SimulatorConfig:
    limits = AccountLimits(
        rpm=options.rpm,
        tpm=options.tpm,
        input_tpm=options.input_tpm,
        output_tpm=options.output_tpm,
        burst_seconds=options.burst,
        enqueued_tokens=options.enqueued_tokens,
        refused_count=options.refused_count,
        count_max_tokens=options.count_max_tokens,
        headers=not options.no_limit_headers,
        retry_after=options.retry_after,
    )
    return SimulatorConfig(
        seed=options.seed,
        models=tuple(name for name in options.models.split(",") if name),
        limits=limits,
        latency=Latency.parse(options.latency),
        turnaround=Latency.parse(options.turnaround),
        faults=_read_faults(options.faults),
        answer=options.answer,
    )


def _read_faults(path: str | None) -> Faults:
    if path is None:
        return Faults()
    try:
        value = msgspec.json.decode(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"the faults cannot be read from {path}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f'{path} must hold an object like {{"faults": [{{"kind": "hang", "times": 1}}]}}')
    return Faults.of(value, path)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _parser() -> argparse.ArgumentParser:
    names = dict.fromkeys(dialect.name for dialect in installed_dialects())
    parser = argparse.ArgumentParser(
        prog="fanfold simulate",
        description=f"A fake of {', '.join(names)} with their limits, errors and batches. No key, no cost.",
        epilog="faults: " + "; ".join(f"{kind} ({text})" for kind, text in KINDS.items()),
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on (%(default)s)")
    add("--port", type=int, default=8089, help="the port to listen on, 0 for any (%(default)s)")
    add("--seed", type=int, default=0, help="of answers and times (%(default)s)")
    add("--models", default="", help="the models that exist, separated by commas; none given: every model")
    add("--latency", default="0", help="of an answer: median[,sigma[,per_token]] in seconds (%(default)s)")
    add("--turnaround", default="1", help="of a batch: median[,sigma] in seconds (%(default)s)")
    add("--rpm", type=float, help="requests per minute, per key and model")
    add("--tpm", type=float, help="tokens per minute, input and output together")
    add("--input-tpm", type=float, help="input tokens per minute")
    add("--output-tpm", type=float, help="output tokens per minute")
    add("--burst", type=float, default=60.0, help="seconds of the rate that may be used at once (%(default)s)")
    add("--enqueued-tokens", type=int, help="input tokens that may wait in batches")
    add("--refused-count", action="store_true", help="refused requests use up the limit too")
    add("--count-max-tokens", action="store_true", help="count max_tokens in advance instead of what was written")
    add("--no-limit-headers", action="store_true", help="do not tell the state of the limits")
    add(
        "--retry-after",
        default="seconds",
        choices=("seconds", "ms", "date", "absent", "garbage"),
        help="how a 429 says when to come back (%(default)s)",
    )
    add("--answer", metavar="MODULE:FUNCTION", help="what the models say: answer(model, messages, params, rng)")
    add("--faults", metavar="FILE", help='JSON such as {"faults": [{"kind": "rate_limit", "probability": 0.1}]}')
    return parser


if __name__ == "__main__":
    sys.exit(main())
