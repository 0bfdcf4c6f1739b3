"""A genetic algorithm evolves prompts that are scored on many problems through language models.

A candidate is a prompt in sections (role, instruction, reasoning cue, format, examples); a case is a problem; a cell is
one model call and a graded answer.  Racing gives hopeless prompts few problems; the winner among the finalists is
chosen on validation problems and scored once on held-out ones.
"""

from fanfold.plugins import Starter, StudyPlugin
from fanfold.prompting.genome import Genome
from fanfold.studies.prompts.config import PromptsConfig
from fanfold.studies.prompts.shown import shown
from fanfold.studies.prompts.study import run_options, study
from fanfold.tasks import Problem, Task
from fanfold.tasks.sandbox import checks

__all__ = ["Genome", "Problem", "PromptsConfig", "Task", "plugin", "run_options", "study"]


#: A hundred calls give a first result within minutes, also on the local model.
starter = Starter(
    "Find the prompt that answers your problems best.",
    {"calls": 100},
    data="task",
    model="model",
    offer={
        "seeds": ["Your own prompt, to start from."],
        "grader": "exact",
        "writer": "PROVIDER/MODEL",
        "pinned": "What every prompt must contain.",
        "against": ["random"],
        "price_as": "PROVIDER/MODEL",
    },
)

plugin = StudyPlugin(
    PromptsConfig,
    study,
    run_options,
    world="fanfold.studies.prompts.simulated:solver",
    shown=shown,
    checks=checks,
    starter=starter,
)
