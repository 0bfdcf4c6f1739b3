"""The tasks that ship with Fanfold: six small ones that need no download, from easy to hard for a small model.

The data are ours and in the public domain (CC0): data/LICENSE.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from fanfold.studies.prompts.tasks.arithmetic import word_problems
from fanfold.studies.prompts.tasks.grading import CodeTests, Exact, MultipleChoice, Numeric
from fanfold.studies.prompts.tasks.task import Problem, Task

_ONE_LINE = ("\n",)


def city() -> Task:
    """Name the city in a sentence that may also name people and countries."""
    return Task(
        name="city",
        problems=tuple(Problem(row["id"], row["input"], row["answer"]) for row in _data("city")),
        grader=Exact(first_line=True),
        description="Name the one city that is mentioned in a sentence.",
        labels=(("Sentence", "City"), ("Text", "City"), ("Text", "Answer"), ("Input", "Output"), ("Q", "A")),
        clauses={
            "role": ("You are a careful geographer.", "You are an assistant who reads closely."),
            "instruction": (
                "Name the city mentioned in the sentence.",
                "Output only the city.",
                "Extract the city from the text.",
                "Which city is mentioned?",
                "Find the name of the city in each sentence.",
                "People and countries are not cities.",
            ),
            "cue": ("Read the sentence carefully.", "Look for the place.", "There is exactly one city."),
            "format": (
                "Answer with the name of the city only.",
                "Reply with one name and nothing else.",
                "Do not write a full sentence.",
                "Copy the name exactly as it is written.",
            ),
        },
        seeds=(
            "Where?",
            "Which city? Reply in JSON.",
            "Please tell me what you know about the city in this text.",
            "Think about this and then explain which city is meant.",
            "Hello! I have a text here and I need to know the city. Thanks!",
        ),
        max_tokens=8,
        stop=_ONE_LINE,
        source="Fanfold's own sentences (CC0)",
    )


def sentiment() -> Task:
    """Say whether a short film review is positive or negative."""
    return Task(
        name="sentiment",
        problems=tuple(Problem(row["id"], row["input"], row["answer"]) for row in _data("sentiment")),
        grader=Exact(first_line=True),
        description="Say whether a short film review is positive or negative.",
        labels=(("Review", "Sentiment"), ("Text", "Sentiment"), ("Review", "Answer"), ("Input", "Output"), ("Q", "A")),
        clauses={
            "role": ("You are a film critic.", "You are a careful reader of reviews."),
            "instruction": (
                "Classify the review as positive or negative.",
                "Is the review positive or negative?",
                "Decide whether the writer liked the film.",
                "Say positive if the writer liked the film and negative if not.",
                "Label the sentiment of each review.",
            ),
            "cue": (
                "Pay attention to words of praise and of complaint.",
                "Read the whole review.",
                "Judge the writer's mood.",
            ),
            "format": (
                "Answer with one word: positive or negative.",
                "Reply with positive or negative only.",
                "Do not explain.",
                "Use lower case.",
            ),
        },
        seeds=(
            "What do you think?",
            "Sentiment? Reply in JSON.",
            "Please read this review and tell me about it.",
            "Did they like it? Explain your reasoning.",
            "Hello! I have a review here and I would like an opinion. Thanks!",
        ),
        max_tokens=8,
        stop=_ONE_LINE,
        source="Fanfold's own reviews of no real film (CC0)",
    )


def addition() -> Task:
    """Add two numbers of two digits."""
    pairs = [(a, b) for a in range(11, 100) for b in range(11, 100) if (a * 7 + b * 13) % 41 == 0]
    return Task(
        name="addition",
        problems=tuple(Problem(f"{a}+{b}", f"{a} + {b}", a + b) for a, b in pairs),
        grader=Numeric(),
        description="Add two numbers of two digits.",
        labels=(("Problem", "Sum"), ("Question", "Answer"), ("Input", "Output"), ("Q", "A")),
        clauses={
            "role": ("You are a calculator.", "You are good at arithmetic."),
            "instruction": ("Add the two numbers.", "Give the sum.", "Work out the sum of the numbers.", "Calculate."),
            "cue": ("Add the ones, then the tens.", "Mind the carry.", "Check the sum."),
            "format": ("Answer with the number only.", "Reply with one number.", "Do not explain."),
        },
        seeds=("Answer:", "Do the math and reply in JSON.", "Please help me with this.", "Explain how to add numbers."),
        max_tokens=8,
        stop=_ONE_LINE,
        source="made by rule (CC0)",
    )


def arithmetic() -> Task:
    """Solve a word problem in two or three steps; the answer is a whole number."""
    return Task(
        name="arithmetic",
        problems=word_problems(),
        grader=Numeric(),
        description="Solve a word problem with whole numbers and give the number that is asked for.",
        labels=(("Question", "Answer"), ("Problem", "Solution"), ("Q", "A"), ("Input", "Output")),
        clauses={
            "role": ("You are a patient teacher of mathematics.", "You are good at word problems."),
            "instruction": (
                "Solve the problem.",
                "Work out the number that is asked for.",
                "Write down what is known, then calculate.",
                "Do the calculation one step at a time.",
            ),
            "cue": ("Let's think step by step.", "Check each step.", "Mind the units.", "First find what is asked."),
            "format": (
                "End with the answer after ####.",
                "Give the final number on the last line.",
                "The last number you write must be the answer.",
                "Keep it short.",
            ),
        },
        seeds=("Answer:", "Solve this.", "What is the answer? Reply in JSON.", "Please help me with my homework."),
        max_tokens=150,
        source="made by rule (CC0)",
    )


def choice() -> Task:
    """Answer a question of general knowledge by choosing one of four options."""
    problems = []
    for row in _data("choice"):
        options = dict(zip("ABCD", row["options"]))
        listed = "".join(f"\n{label}) {text}" for label, text in options.items())
        problems.append(Problem(row["id"], row["question"] + listed, row["answer"], {"options": options}))
    return Task(
        name="choice",
        problems=tuple(problems),
        grader=MultipleChoice(),
        description="Answer a question of general knowledge by choosing the one right option out of four.",
        labels=(("Question", "Answer"), ("Q", "A"), ("Input", "Output")),
        clauses={
            "role": ("You are an expert at quizzes.", "You know a little about everything."),
            "instruction": (
                "Choose the right option.",
                "Answer the multiple choice question.",
                "Pick the one answer that is correct.",
                "Exactly one option is right.",
            ),
            "cue": ("Rule out the wrong options first.", "Think before you choose.", "Read all options."),
            "format": (
                "Answer with the letter only.",
                "Reply with A, B, C or D.",
                "Do not explain.",
                "Give one letter and nothing else.",
            ),
        },
        seeds=("Answer:", "What do you think?", "Explain all the options.", "Tell me the answer in JSON."),
        max_tokens=16,
        stop=_ONE_LINE,
        source="Fanfold's own questions (CC0)",
    )


def code() -> Task:
    """Write a small Python function that passes its tests."""
    return Task(
        name="code",
        problems=tuple(
            Problem(row["id"], row["input"], row["tests"], {"shown": f"```python\n{row['solution']}\n```"})
            for row in _data("code")
        ),
        grader=CodeTests(),
        description="Write a small Python function that does what is asked.",
        labels=(("Task", "Python"), ("Question", "Answer"), ("Input", "Output")),
        clauses={
            "role": ("You are an experienced Python programmer.", "You write short and correct code."),
            "instruction": (
                "Write the function.",
                "Write a Python function with exactly the given name and parameters.",
                "Return the result; do not print it.",
                "Use only the standard library.",
            ),
            "cue": ("Think of empty inputs and other edge cases.", "Read the task twice.", "Keep it simple."),
            "format": (
                "Reply with one Python code block.",
                "Put the code between ```python and ```.",
                "Write no explanation.",
                "Write no tests.",
            ),
        },
        seeds=("Answer:", "Write code.", "How would you do this? Explain.", "Please help me with this program."),
        max_tokens=256,
        source="Fanfold's own exercises (CC0)",
    )


def _data(name: str) -> list[dict[str, Any]]:
    text = files(__package__).joinpath("data", f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


#: Every task by its name.
BUILTIN: Mapping[str, Callable[[], Task]] = {
    make.__name__: make for make in (city, sentiment, addition, arithmetic, choice, code)
}
