"""Tasks: problems and how replies are graded; those that ship with Fanfold, and loaders for your own."""

from fanfold.studies.prompts.tasks.builtin import BUILTIN
from fanfold.studies.prompts.tasks.grading import grader
from fanfold.studies.prompts.tasks.loading import load
from fanfold.studies.prompts.tasks.task import Grade, Grader, Problem, Split, Task

__all__ = ["BUILTIN", "Grade", "Grader", "Problem", "Split", "Task", "grader", "load"]
