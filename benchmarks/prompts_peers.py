"""Other optimisers' search for a prompt, each in an environment of its own: JSON in, the prompt out.

Standard library and the peer only.  The model is asked over HTTP, every method with the same parameters, and graded
there by the task's own grader.  A prompt is a text with a mark where the problem goes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import sys
import threading
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

THREADS = 2
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Access:
    """The job, and the way to its model and its grader."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.label, self.answer = job["labels"]
        self.examples: list[tuple[str, str]] = [(text, right) for text, right in job["examples"]]
        self.train: list[tuple[str, str]] = [(text, right) for text, right in job["train"]]
        self.seed, self.calls, self.mark = job["seed"], job["calls"], job["mark"]
        self.settings, self.url = job["settings"], job["url"]
        self.made = 0
        self._lock = threading.Lock()
        self._replies: dict[str, str] = {}

    @property
    def instructions(self) -> list[str]:
        """What somebody would write who knows no more than the names of the columns."""
        text, right = self.label.lower(), self.answer.lower()
        return [
            f"Give the {right} for each {text}.",
            f"Read the {text} and write the {right}.",
            f"What is the {right}? Answer like the examples.",
            f"You are an expert. Reply with the {right} only.",
            f"Here are examples of {text} and {right}.",
        ]

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        request = urllib.request.Request(
            f"{self.url}/{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with _DIRECT.open(request, timeout=600) as response:
            return json.loads(response.read())

    def complete(self, text: str, **other: Any) -> str:
        """The model's continuation; an equal request at temperature 0 is asked once, as a peer's own cache would."""
        settings = {**self.settings, **other}
        key = json.dumps([text, settings])
        if key in self._replies:
            return self._replies[key]
        with self._lock:
            self.made += 1
        said = str(self._post("completions", {"prompt": text, **settings})["choices"][0]["text"])
        if not settings["temperature"]:
            self._replies[key] = said
        return said

    def complete_all(self, texts: Sequence[str]) -> list[str]:
        """Both cores at work: the model answers two requests at a time."""
        with ThreadPoolExecutor(THREADS) as pool:
            return list(pool.map(self.complete, texts))

    def write(self, text: str) -> str:
        """A text of the model's own, for instructions: it answers as the chat model it was tuned to be."""
        self.made += 1
        body = {"messages": [{"role": "user", "content": text[-5000:]}], "max_tokens": 80, "temperature": 0.7}
        return str(self._post("chat/completions", body)["choices"][0]["message"]["content"])

    def grade(self, text: str, reply: str) -> float:
        return float(self._post("grade", {"input": text, "reply": reply})["score"])

    def block(self, text: str, right: str = "") -> str:
        """An example, or the problem, under the names of the file's columns."""
        return f"{self.label}: {text}\n{self.answer}: {right}".rstrip()

    def prompt(self, instruction: str, examples: list[tuple[str, str]], text: str) -> str:
        parts = [instruction, *(self.block(*example) for example in examples), self.block(text)]
        return "\n\n".join(part for part in parts if part)


# -- DSPy --------------------------------------------------------------------------------------------------------------


def _dspy(access: Access, instruction: str) -> tuple[Any, Any, Any, Callable[..., str]]:
    """DSPy with completion access: the module, a program, a model that writes, a metric, how to read a program."""
    import dspy

    program = dspy.Predict(dspy.Signature("problem -> solution", instruction or "-"))

    class Completing(dspy.Adapter):
        """Renders a signature as a text to be continued: instruction, demonstrations, the problem."""

        def format(self, signature: Any, demos: Any, inputs: Any) -> Any:
            return [{"role": "user", "content": text_of(signature, demos, inputs)}]

        def parse(self, signature: Any, completion: str) -> dict[str, Any]:
            first, *others = signature.output_fields
            return {first: completion.strip(), **dict.fromkeys(others, "")}

    class Completion(dspy.BaseLM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            text = messages[-1]["content"] if messages else prompt
            said = (access.write if self.kwargs["writes"] else access.complete)(text) or "\n"
            return {"model": "smollm2", "usage": {}, "choices": [{"message": {"content": said}}]}

    def text_of(asked: Any, demos: Any, inputs: Any) -> str:
        if list(asked.input_fields) == ["problem"]:
            shown = [(demo["problem"], demo["solution"]) for demo in demos]
            return access.prompt(asked.instructions.strip("-"), shown, inputs["problem"])
        lines = [f"{name.replace('_', ' ')}: {inputs.get(name)}" for name in asked.input_fields]
        return "\n".join([asked.instructions, *lines, f"{next(iter(asked.output_fields)).replace('_', ' ')}:"])

    dspy.configure(lm=Completion("smollm2", writes=False), adapter=Completing())
    rows = {
        name: [dspy.Example(problem=text, solution=right).with_inputs("problem") for text, right in part]
        for name, part in (("examples", access.examples), ("train", access.train))
    }

    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        return access.grade(example.problem, prediction.solution)

    writer = Completion("smollm2", writes=True)

    def compiled(optimizer: Any, **options: Any) -> str:
        done = optimizer.compile(program, trainset=rows["examples"], valset=rows["train"], **options)
        return text_of(done.signature, done.demos, {"problem": access.mark})

    return dspy, writer, metric, compiled


def dspy_random(access: Access) -> str:
    """Random search over few-shot sets, with the instruction that DSPy makes of the names of the fields."""
    fields = [name.lower().replace(" ", "_") for name in (access.label, access.answer)]
    return _random_search(access, "Given the fields `{}`, produce the fields `{}`.".format(*fields))


def dspy_bare(access: Access) -> str:
    """The same without an instruction."""
    return _random_search(access, "")


def _random_search(access: Access, instruction: str) -> str:
    """Three fixed candidates and as many random ones as the calls pay for; each is scored on all problems."""
    dspy, _, metric, compiled = _dspy(access, instruction)
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=metric,
        max_bootstrapped_demos=4,
        max_labeled_demos=len(access.examples),
        num_candidate_programs=access.calls // (len(access.train) + len(access.examples) // 2) - 3,
        num_threads=THREADS,
    )
    return compiled(optimizer)


def mipro(access: Access) -> str:
    """Instructions written by the model itself, and few-shot sets, by Bayesian optimisation over both."""
    dspy, writer, metric, compiled = _dspy(access, access.instructions[0])
    optimizer = dspy.MIPROv2(
        metric=metric,
        prompt_model=writer,
        auto=None,
        num_candidates=4,
        max_bootstrapped_demos=4,
        max_labeled_demos=len(access.examples),
        num_threads=THREADS,
        seed=access.seed + 1,
    )
    return compiled(optimizer, num_trials=(access.calls - 50) // len(access.train), minibatch=False)


# -- CAPO of promptolution ---------------------------------------------------------------------------------------------


def capo(access: Access) -> str:
    """Evolution with racing; examples and problem as its own template has them, each name and text on a line."""
    return _capo(access, "Input:\n{}\nOutput:\n{}")


def capo_fields(access: Access) -> str:
    """The same under the names of the file's columns."""
    return _capo(access, f"{access.label}: {{}}\n{access.answer}: {{}}")


def _capo(access: Access, form: str) -> str:
    import numpy
    import pandas
    from promptolution.llms.base_llm import BaseLLM
    from promptolution.optimizers.capo import CAPO
    from promptolution.predictors.base_predictor import BasePredictor
    from promptolution.tasks.base_task import BaseTask
    from promptolution.utils import capo_utils, prompt
    from promptolution.utils.callbacks import BaseCallback

    capo_utils.CAPO_FEWSHOT_TEMPLATE = form.format("<input>", "<output>")
    prompt.DOWNSTREAM_TEMPLATE_W_FEWSHOTS = "<instruction>\n\n<few_shots>"
    numpy.random.seed(access.seed)

    def whole(head: str, text: str) -> str:
        return f"{head}\n\n{form.format(text, '')}".rstrip(" ")

    class Writer(BaseLLM):
        def _get_response(self, prompts: Any, system_prompts: Any) -> Any:
            return [access.write(text) for text in prompts]

    class Predictor(BasePredictor):
        def predict(self, prompts: Any, xs: Any, system_prompts: Any = None) -> Any:
            replies = access.complete_all([whole(head, text) for head, text in zip(prompts, xs)])
            return replies, [f"{text}\n{reply}" for text, reply in zip(xs, replies)]

        def _extract_preds(self, preds: Any) -> Any:
            return preds

    class Graded(BaseTask):
        def _evaluate(self, xs: Any, ys: Any, preds: Any) -> Any:
            return numpy.array([access.grade(text, reply) for text, reply in zip(xs, preds)], dtype=float)

    class Budget(BaseCallback):
        """Ends the search before a step like the last would exceed the calls."""

        before = 0

        def on_step_end(self, optimizer: Any) -> bool:
            step, self.before = access.made - self.before, access.made
            return access.made + step <= access.calls

    rows = pandas.DataFrame(access.train, columns=["x", "y"])
    task = Graded(rows, "x", "y", access.instructions[0], n_subsamples=5, eval_strategy="sequential_block")
    optimizer = CAPO(
        Predictor(Writer()),
        task,
        Writer(),
        access.instructions,
        crossovers_per_iter=2,
        upper_shots=len(access.examples),
        max_n_blocks_eval=access.calls // 50,
        create_fs_reasoning=False,
        df_few_shots=pandas.DataFrame(access.examples, columns=["x", "y"]),
        callbacks=[Budget()],
    )
    return whole(str(optimizer.optimize(100)[0]), access.mark)


# -- GEPA --------------------------------------------------------------------------------------------------------------


def gepa(access: Access) -> str:
    """Reflective evolution of the whole text before the problem, from an instruction and all examples on."""
    import gepa as library
    from gepa.core.adapter import EvaluationBatch

    class Adapter:
        propose_new_texts = None

        def evaluate(self, batch: Any, candidate: Any, capture_traces: bool = False) -> Any:
            replies = access.complete_all([f"{candidate['prompt']}\n\n{access.block(text)}" for text, _ in batch])
            scores = [access.grade(text, reply) for (text, _), reply in zip(batch, replies)]
            traces = list(zip(batch, replies, scores)) if capture_traces else None
            return EvaluationBatch(outputs=replies, scores=scores, trajectories=traces)

        def make_reflective_dataset(self, candidate: Any, batch: Any, components: Any) -> Any:
            rows = [
                {
                    "Inputs": text,
                    "Generated Outputs": reply,
                    "Feedback": "right" if score else f"wrong, the answer is {right}",
                }
                for (text, right), reply, score in batch.trajectories
            ]
            return dict.fromkeys(components, rows)

    shown = [access.block(*example) for example in access.examples]
    start = "\n\n".join([access.instructions[0], *shown])
    result = library.optimize(
        seed_candidate={"prompt": start},
        trainset=access.train,
        valset=access.train,
        adapter=Adapter(),
        reflection_lm=lambda text: access.write(str(text)),
        # Where every problem is solved already, it looks on without a call, so its rounds count too.
        stop_callbacks=lambda state: access.made + len(access.train) > access.calls or state.i > access.calls,
        seed=access.seed,
        raise_on_exception=False,
    )
    return f"{result.best_candidate['prompt']}\n\n{access.block(access.mark)}"


METHODS: dict[str, Callable[[Access], str]] = {
    "dspy-random": dspy_random,
    "dspy-bare": dspy_bare,
    "mipro": mipro,
    "capo": capo,
    "capo-fields": capo_fields,
    "gepa": gepa,
}


def main() -> None:
    job = json.loads(sys.stdin.read())
    random.seed(job["seed"])
    with contextlib.redirect_stdout(io.StringIO()):
        text = METHODS[job["method"]](Access(job))
    print(json.dumps({"prompt": text}))


if __name__ == "__main__":
    os.environ["DSPY_CACHEDIR"] = os.environ.get("TMPDIR", "/tmp") + "/dspy-benchmark"
    main()
