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
import urllib.request
from collections.abc import Callable
from typing import Any

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Access:
    """The job, and the way to its model and its grader."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.label, self.answer = job["labels"]
        self.examples: list[tuple[str, str]] = [(text, right) for text, right in job["examples"]]
        self.train: list[tuple[str, str]] = [(text, right) for text, right in job["train"]]
        self.seed, self.calls, self.mark = job["seed"], job["calls"], job["mark"]
        self.settings, self.url = job["settings"], job["url"]
        self._replies: dict[str, str] = {}

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
        said = str(self._post("completions", {"prompt": text, **settings})["choices"][0]["text"])
        if not settings["temperature"]:
            self._replies[key] = said
        return said

    def write(self, text: str) -> str:
        """A text of the model's own, for instructions: it answers as the chat model it was tuned to be."""
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


def _dspy(access: Access) -> tuple[Any, Any, Any, Any, Callable[[Any], str]]:
    """DSPy with completion access: the module, its program, data, metric, and how a program is read as a prompt."""
    import dspy

    signature = dspy.Signature("problem -> solution")

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
            said = (self.kwargs["write"] or access.complete)(text) or "\n"
            return {"model": "smollm2", "usage": {}, "choices": [{"message": {"content": said}}]}

    def text_of(asked: Any, demos: Any, inputs: Any) -> str:
        instruction = "" if asked.instructions == signature.instructions else asked.instructions
        if list(asked.input_fields) == ["problem"]:
            shown = [(demo["problem"], demo["solution"]) for demo in demos]
            return access.prompt(instruction, shown, inputs["problem"])
        lines = [f"{name.replace('_', ' ')}: {inputs.get(name)}" for name in asked.input_fields]
        return "\n".join([asked.instructions, *lines, f"{next(iter(asked.output_fields)).replace('_', ' ')}:"])

    dspy.configure(lm=Completion("smollm2", write=None), adapter=Completing())
    rows = {
        name: [dspy.Example(problem=text, solution=right).with_inputs("problem") for text, right in part]
        for name, part in (("examples", access.examples), ("train", access.train))
    }

    def metric(example: Any, prediction: Any, trace: Any = None) -> float:
        return access.grade(example.problem, prediction.solution)

    def read(program: Any) -> str:
        return text_of(program.signature, program.demos, {"problem": access.mark})

    return dspy, Completion("smollm2", write=access.write), rows, metric, read


def dspy_random(access: Access) -> str:
    """Three fixed candidates and so many random ones as the calls pay for; each is scored on all 20 problems."""
    dspy, _, rows, metric, read = _dspy(access)
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=metric,
        max_bootstrapped_demos=4,
        max_labeled_demos=8,
        num_candidate_programs=access.calls // 24 - 3 + (access.calls < 150),
        num_threads=1,
    )
    program = dspy.Predict("problem -> solution")
    return read(optimizer.compile(program, trainset=rows["examples"], valset=rows["train"]))


def mipro(access: Access) -> str:
    """Instructions written by the model itself, and few-shot sets, by Bayesian optimisation over both."""
    dspy, writer, rows, metric, read = _dspy(access)
    optimizer = dspy.MIPROv2(
        metric=metric,
        prompt_model=writer,
        auto=None,
        num_candidates=4,
        max_bootstrapped_demos=4,
        max_labeled_demos=8,
        num_threads=1,
        seed=access.seed + 1,
    )
    program = dspy.Predict("problem -> solution")
    trials = (access.calls - 50) // 20
    return read(
        optimizer.compile(program, trainset=rows["examples"], valset=rows["train"], num_trials=trials, minibatch=False)
    )


METHODS: dict[str, Callable[[Access], str]] = {"dspy-random": dspy_random, "mipro": mipro}


def main() -> None:
    job = json.loads(sys.stdin.read())
    random.seed(job["seed"])
    with contextlib.redirect_stdout(io.StringIO()):
        text = METHODS[job["method"]](Access(job))
    print(json.dumps({"prompt": text}))


if __name__ == "__main__":
    os.environ["DSPY_CACHEDIR"] = os.environ.get("TMPDIR", "/tmp") + "/dspy-benchmark"
    main()
