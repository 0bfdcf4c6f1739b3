"""GEPA's search for a prompt, in an environment of its own: reads a job as JSON from stdin, prints the winner as JSON.

Standard library and gepa only; the model is asked over HTTP with OpenAI's protocol.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import urllib.request
from typing import Any

import gepa
from gepa.core.adapter import EvaluationBatch

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Adapter:
    """Where GEPA meets the task: one text component, the instruction, before the labelled input."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job = job
        self.calls = 0

    def ask(self, text: str, **options: Any) -> str:
        self.calls += 1
        body = {"model": self.job["model"], "messages": [{"role": "user", "content": text}], **options}
        headers = {"content-type": "application/json", "authorization": "Bearer benchmark"}
        request = urllib.request.Request(f"{self.job['url']}/v1/chat/completions", json.dumps(body).encode(), headers)
        with _DIRECT.open(request, timeout=300) as response:
            return json.loads(response.read())["choices"][0]["message"]["content"] or ""

    def evaluate(self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        outputs, scores = [], []
        for problem in batch:
            text = f"{candidate['instruction']}\n\nInput: {problem['input']}\nOutput:"
            said = self.ask(text, **self.job["options"])
            outputs.append(said)
            first = (said.strip().splitlines() or [""])[0].strip(" .\"'`*").casefold()
            scores.append(float(first == str(problem["answer"]).casefold()))
        traces = [{"problem": p, "said": s} for p, s in zip(batch, outputs)] if capture_traces else None
        return EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)

    def make_reflective_dataset(self, candidate: Any, batch: Any, components: list[str]) -> dict[str, list[Any]]:
        rows = [
            {
                "Inputs": trace["problem"]["input"],
                "Generated Outputs": trace["said"],
                "Feedback": "right" if score else f"wrong, the answer is {trace['problem']['answer']}",
            }
            for trace, score in zip(batch.trajectories, batch.scores)
        ]
        return dict.fromkeys(components, rows)


def main() -> None:
    job = json.loads(sys.stdin.read())
    adapter = Adapter(job)
    with contextlib.redirect_stdout(io.StringIO()):
        result = gepa.optimize(
            seed_candidate={"instruction": job["seed_prompt"]},
            trainset=job["train"],
            valset=job["train"],
            adapter=adapter,
            reflection_lm=lambda text: adapter.ask(str(text), max_tokens=job["reflection_tokens"], temperature=0.7),
            max_metric_calls=job["budget"],
            seed=job["seed"],
            raise_on_exception=False,
        )
    print(json.dumps({"instruction": result.best_candidate["instruction"], "calls": adapter.calls}))


if __name__ == "__main__":
    main()
