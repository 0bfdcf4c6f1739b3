"""The documented batch services of the secret game: each makes jobs, and runs them on one kind of executor."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from fanfold.errors import ConfigError, nearest
from fanfold.legacy.secret_game import Agent, BatchJob, BatchTask, GameMode, GameService, Requests, provider
from fanfold.legacy.secret_waves import JobLog, listening
from fanfold.running import Go, Run
from fanfold.studies import secrets as game
from fanfold.studies.secrets.config import SecretsConfig
from fanfold.study import Study
from fanfold.summary import Summary
from fanfold.sync import run_sync

log = logging.getLogger("fanfold.legacy")


class BatchService:
    """Makes batch jobs of interactions and runs them, in realtime: `max_concurrent_tasks` conversations at once.

    Jobs are kept in the ledger file (`ledger`, else $FANFOLD_LEDGER or fanfold.db): a job that is made again with the
    same `job_id` continues where it stopped, and pays for nothing twice.  Results are in a folder of their own for each
    job under `results_dir`.  The first job of a service has the service's `seed`, the next one the seed after that.
    """

    #: The documented word for this service.
    batch_service: ClassVar[str] = "default"

    def __init__(
        self,
        game_service: GameService | None = None,
        max_concurrent_tasks: int = 10,
        batch_size: int | None = None,
        *,
        results_dir: str = "results/batch_jobs",
        ledger: str | None = None,
        seed: int = 0,
    ) -> None:
        if game_service is not None and not isinstance(game_service, GameService):
            raise ConfigError(f"game_service must be a GameService, not {game_service!r}")
        self.game_service = game_service or GameService()
        self.max_concurrent_tasks, self.batch_size = max_concurrent_tasks, batch_size
        self.results_dir, self.seed = results_dir, seed
        self.ledger = ledger or os.environ.get("FANFOLD_LEDGER") or "fanfold.db"
        self._jobs: dict[str, tuple[BatchJob, Study[Any]]] = {}

    def create_batch_job(
        self,
        agents: Sequence[Agent],
        game_mode: GameMode | str = GameMode.STANDARD,
        num_interactions: int = 100,
        messages_per_interaction: int = 5,
        *,
        job_id: str | None = None,
        seed: int | None = None,
    ) -> BatchJob:
        """A job of so many conversations, in each of which both agents send so many messages; nothing is sent yet.

        What cannot work (a missing key, a retired model, a folder that cannot be written to) is an error here.
        """
        agents = tuple(agents)
        if len(agents) < 2 or len({agent.id for agent in agents}) < len(agents):
            raise ConfigError(f"a job needs two or more agents with different ids, not {[a.id for a in agents]!r}")
        if job_id is not None and job_id in self._jobs:
            raise ConfigError(f"there is a batch job {job_id!r} already: run that one, or give another job_id")
        config = self._config(agents, game_mode, num_interactions, messages_per_interaction, seed)
        study = game.study(config)
        tasks = tuple(BatchTask(f"0/{case.id}", agents) for case in study.seeded_cases)
        name = job_id or f"job-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        job = BatchJob(name, agents, config, tasks, ledger=self.ledger)
        self._jobs[name] = (job, study)
        self._warn(config)
        return job

    def get_batch_job(self, job_id: str) -> BatchJob:
        """A job of this service, as far as it has come."""
        return self._known(job_id)[0]

    async def run_batch_job(self, job_id: str) -> BatchJob:
        """Run a job to its end, analyse it, and save that; raises what keeps it from running."""
        job, study = self._known(job_id)
        if job.status == "in_progress":
            raise ConfigError(f"batch job {job_id!r} is running already: await that, or look at its progress")
        watcher = JobLog(job, study.seeded_cases)
        heard = dataclasses.replace(
            study, evaluate=listening(study.evaluate, watcher.begun), conclude=_Settling(job, study)
        )
        options = game.run_options(job.config)
        if options["executor"].startswith("batch"):
            options["batch_fallback"] = "realtime"  # as documented: what a batch leaves goes out one by one
        meta = {"target": "secrets", "fields": dataclasses.asdict(job.config), "options": options}
        job.status, job.error, job.started_at = "in_progress", None, time.time()
        try:
            how = {**options, "ledger": self.ledger, "run": job.id, "watch": watcher, "progress": False}
            run = await heard.run_async(**how, meta=meta)
        except BaseException as error:
            job.fail(error)
            raise
        with run.ledger:
            assert run.summary is not None
            job.summary, job.results_path = run.summary, run.summary.figures["job"]["folder"]
            job.requests = Requests.of(run.view)
        log.info("%s: %s", job.id, job.requests)
        return job

    def run_batch_job_sync(self, job_id: str) -> BatchJob:
        """`run_batch_job` for synchronous code."""
        return run_sync(lambda: self.run_batch_job(job_id))

    def _config(
        self, agents: tuple[Agent, ...], mode: GameMode | str, interactions: int, messages: int, seed: int | None
    ) -> SecretsConfig:
        modes = [each.value for each in GameMode]
        if mode not in modes:
            raise ConfigError(f"there is no game mode {mode!r}{nearest(str(mode), modes)}")
        for name, value in (("num_interactions", interactions), ("messages_per_interaction", messages)):
            if not isinstance(value, int):
                raise ConfigError(f"{name} must be a whole number, not {value!r}")
        service = self.game_service
        each = len(agents) // 2 * int(service.settings.get("rounds", 1))
        if interactions % each:
            raise ConfigError(
                f"num_interactions={interactions}: a task of {len(agents)} agents has {each} interactions; give a "
                f"multiple of that, such as {max(each, interactions // each * each)}"
            )
        return SecretsConfig(
            models=tuple(map(service.model_of, agents)),
            style=tuple(map(service.style_of, agents)),
            agents=len(agents),
            names=tuple(agent.name for agent in agents),
            secrets=tuple(agent.secret for agent in agents),
            game_mode=GameMode(mode).value,
            num_interactions=interactions // each,
            messages_per_interaction=messages,
            batch_service=self.batch_service,
            batch_size=self.batch_size,
            max_concurrent=self.max_concurrent_tasks,
            results=self.results_dir,
            seed=self.seed + len(self._jobs) if seed is None else seed,
            **service.settings,
        )

    def _warn(self, config: SecretsConfig) -> None:
        """Say what will not travel in batches although a service was asked for that has them."""
        wanted = self.batch_service.removesuffix("-conversation")
        if wanted in ("openai", "anthropic") and config.base_url is None:
            others = [name for name in dict.fromkeys(config.players) if provider(name) != wanted]
            if others:
                log.warning(
                    "%s has no batches for %s: its requests go out one by one, at full price", wanted, ", ".join(others)
                )

    def _known(self, job_id: str) -> tuple[BatchJob, Study[Any]]:
        if job_id not in self._jobs:
            raise ConfigError(f"there is no batch job {job_id!r} here{nearest(job_id, self._jobs)}")
        return self._jobs[job_id]


class _Settling:
    """The conclusion of the study, before which the job has its status: what is written down is never in progress."""

    def __init__(self, job: BatchJob, study: Study[Any]) -> None:
        assert study.conclude is not None
        self._job, self._conclude = job, study.conclude

    async def __call__(self, run: Run[Any], go: Go) -> Summary:
        self._job.settle(run.view)
        return await self._conclude(run, go)


class OpenAIBatchService(BatchService):
    """Sends requests in OpenAI's batches, at half the price: one wave for each turn of all conversations together."""

    batch_service = "openai"


class AnthropicBatchService(BatchService):
    """The same in Anthropic's message batches."""

    batch_service = "anthropic"


class ConversationBatchService(BatchService):
    """Waves by turn, in the batches of whichever provider a model has; models without batches are asked in realtime."""

    batch_service: ClassVar[str] = "auto"


class OpenAIConversationBatchService(ConversationBatchService):
    """Waves by turn in OpenAI's batches.  What a batch gives no answer to goes out one by one, and single requests."""

    batch_service = "openai-conversation"


class AnthropicConversationBatchService(ConversationBatchService):
    """The same in Anthropic's message batches."""

    batch_service = "anthropic-conversation"


SERVICES: dict[str, type[BatchService]] = {
    kind.batch_service: kind
    for kind in (
        BatchService,
        OpenAIBatchService,
        AnthropicBatchService,
        OpenAIConversationBatchService,
        AnthropicConversationBatchService,
    )
}


def create_batch_service(kind: str, game_service: GameService | None = None, **options: Any) -> BatchService:
    """The service of a documented word; `auto` is the conversation service of the model's provider, if it has any."""
    if kind == "auto":
        maker = provider((game_service or GameService()).agent_service.name)
        kind = f"{maker}-conversation" if f"{maker}-conversation" in SERVICES else "default"
    if kind not in SERVICES:
        raise ConfigError(f"there is no batch service {kind!r}{nearest(kind, ['auto', *SERVICES])}")
    return SERVICES[kind](game_service, **options)
