"""A model rewrites any text (code, a configuration, prompts) that an evaluator scores, shown where it failed and why.

A candidate is a mapping of named texts, or a request to write one of them; a case is a row of a table, or the only one
there is; a cell is a call of the user's evaluator.  A new text must beat its parent on a few cases before it is scored
on all of them.
"""

from fanfold.plugins import Starter, StudyPlugin
from fanfold.studies.evolve.commands import commands
from fanfold.studies.evolve.config import EvolveConfig
from fanfold.studies.evolve.evaluator import SIMULATED
from fanfold.studies.evolve.shown import shown
from fanfold.studies.evolve.study import run_options, study
from fanfold.tasks.sandbox import checks

__all__ = ["EvolveConfig", "plugin", "run_options", "study"]

#: An evaluator that runs, to be replaced by one that knows what is good.
SCORE = '''"""Scores a text; more is better.  `fanfold run` calls it for every version that the model writes."""


def evaluate(text):
    lines = text.splitlines()
    return {"score": -len(lines), "feedback": f"{len(lines)} lines; fewer are better"}
'''

plugin = StudyPlugin(
    EvolveConfig,
    study,
    run_options,
    commands,
    world=SIMULATED,
    shown=shown,
    checks=checks,
    starter=Starter(
        "Let a model rewrite a text that you can score.",
        {"evaluator": "score.py", "calls": 40},
        data="file",
        model="writer",
        needs_data=True,
        offer={
            "goal": "Say in a sentence what a better text is.",
            "cases": "cases.csv",
            "grader": "exact",
            "target": 1.0,
            "output": "best.txt",
        },
        files={"score.py": SCORE},
    ),
)
