"""See conversation-level batching at work: every wave, its time, and whether each message was paid for exactly once.

An example program under its documented name, not a test of the suite.  It keeps nothing but the results, so that every
message is asked for again: with a real model it costs what it says.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from fanfold.errors import FanfoldError
from fanfold.legacy.secret_game import Agent, AgentService, BatchJob, GameService
from fanfold.legacy.secret_report import report
from fanfold.legacy.secret_services import SERVICES, create_batch_service


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interactions", type=int, default=5)
    parser.add_argument("--messages", type=int, default=2, help="that each agent sends")
    parser.add_argument("--batch-service", choices=[*SERVICES, "auto"], default="openai-conversation")
    parser.add_argument("--model", default="gpt-3.5", help="a documented name such as gpt-3.5, or provider/name")
    parser.add_argument("--batch-size", type=int, help="requests in a provider batch, at most")
    parser.add_argument("--max-concurrent", type=int, default=5, help="interactions at once, in realtime")
    return parser.parse_args()


async def main(given: argparse.Namespace, ledger: str) -> BatchJob:
    service = create_batch_service(
        given.batch_service,
        GameService(agent_service=AgentService(given.model)),
        max_concurrent_tasks=given.max_concurrent,
        batch_size=given.batch_size,
        ledger=ledger,
    )
    job = service.create_batch_job(
        agents=[Agent("1", "Agent 1", "crimson lantern"), Agent("2", "Agent 2", "velvet compass")],
        num_interactions=given.interactions,
        messages_per_interaction=given.messages,
    )
    return await service.run_batch_job(job.id)


def verify(job: BatchJob) -> bool:
    """Say whether as many requests were paid for as there are messages."""
    messages, paid = job.analysis["games"]["messages"], job.requests.batched + job.requests.single
    print(f"\n{messages} messages, {paid} requests paid for: {'as it should be' if paid == messages else 'WRONG'}")
    return bool(paid == messages) and not job.failed_tasks


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout, force=True)
    try:
        with tempfile.TemporaryDirectory(prefix="fanfold-") as folder:
            done = asyncio.run(main(options(), str(Path(folder) / "ledger.db")))
    except FanfoldError as error:
        sys.exit(f"error: {error}")
    print(f"\n{report(done)}")
    sys.exit(0 if verify(done) else 1)
