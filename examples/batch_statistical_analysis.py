"""The documents' statistical analysis under its old names: many interactions of two agents, and what they show.

Without a key the embedded local model plays, which takes a while; `FANFOLD_MODEL=simulated/gpt-6-luna` in the
environment plays for nothing, at once.
"""

import argparse
import asyncio
import logging
import sys

from fanfold.errors import FanfoldError
from fanfold.legacy.secret_game import Agent, AgentService, GameMode, GameService
from fanfold.legacy.secret_report import report
from fanfold.legacy.secret_services import SERVICES, create_batch_service


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-service", choices=[*SERVICES, "auto"], default="default", help="how requests travel")
    parser.add_argument("--agent-type", choices=["claude_opus", "claude_sonnet", "gpt35", "gpt4o_mini"])
    parser.add_argument("--game-mode", choices=[mode.value for mode in GameMode], default="standard")
    parser.add_argument("--num-interactions", type=int, default=100)
    parser.add_argument("--messages-per-interaction", type=int, default=5, help="that each agent sends")
    parser.add_argument("--batch-size", type=int, help="requests in a provider batch, at most")
    parser.add_argument("--max-concurrent", type=int, default=10, help="interactions at once, in realtime")
    parser.add_argument("--seed", type=int, default=0, help="of the conversations; another one is another sample")
    return parser.parse_args()


async def main(given: argparse.Namespace) -> None:
    service = create_batch_service(
        given.batch_service,
        GameService(agent_service=AgentService(given.agent_type)),
        max_concurrent_tasks=given.max_concurrent,
        batch_size=given.batch_size,
        seed=given.seed,
    )
    job = service.create_batch_job(
        agents=[Agent("1", "Agent 1", "crimson lantern"), Agent("2", "Agent 2", "velvet compass")],
        game_mode=given.game_mode,
        num_interactions=given.num_interactions,
        messages_per_interaction=given.messages_per_interaction,
    )
    await service.run_batch_job(job.id)
    print(report(job))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    try:
        asyncio.run(main(options()))
    except FanfoldError as error:
        sys.exit(f"error: {error}")
