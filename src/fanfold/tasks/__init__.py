"""Tasks: problems and how replies are graded; those that ship with Fanfold, and loaders for your own."""

from fanfold.tasks.builtin import BUILTIN
from fanfold.tasks.graders import grader
from fanfold.tasks.loading import load
from fanfold.tasks.task import Grade, Grader, Problem, Split, Task

__all__ = ["BUILTIN", "Grade", "Grader", "Problem", "Split", "Task", "grader", "load"]
