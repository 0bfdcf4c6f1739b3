"""Fifty prompts to begin an evolution with, five of each of the ten documented kinds."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SEEDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "step by step": (
            "Let's think step by step.",
            "Solve the problem one step at a time.",
            "Work through this in small steps and write each of them down.",
            "Take it slowly: first the first step, then the next.",
            "Go on only when the step before is done.",
        ),
        "visual reasoning": (
            "Draw the situation in your mind before you calculate.",
            "Picture the objects and move them as the story says.",
            "Imagine a table with a row for everything that is counted.",
            "Sketch a number line and walk along it.",
            "See the groups in front of you and count them.",
        ),
        "algebraic": (
            "Write an equation for the unknown and solve it.",
            "Name what is asked x and find x.",
            "Turn each sentence into an equation.",
            "Put the known values in and simplify.",
            "Set up the unknowns first, then eliminate them.",
        ),
        "logical breakdown": (
            "Break the problem into smaller questions.",
            "Find out what is given, what is asked, and what connects them.",
            "Separate the facts from the story.",
            "Answer the parts first and join them afterwards.",
            "Ask what must be known before the last step.",
        ),
        "pattern recognition": (
            "Look for a pattern in the numbers.",
            "Remember a similar problem and solve this one alike.",
            "See which quantity grows and which one shrinks.",
            "Find what repeats and how often it does.",
            "Notice whether to add, subtract, multiply or divide.",
        ),
        "estimation and checking": (
            "Estimate the result first, then calculate exactly.",
            "Check the answer before you give it.",
            "Verify every calculation with the opposite one.",
            "Ask whether the result makes sense.",
            "Calculate twice and compare.",
        ),
        "parsing the words": (
            "Read the problem carefully.",
            "Read the question twice and note every number.",
            "Underline what is asked for.",
            "Pay attention to words such as each, left and altogether.",
            "Ignore what does not matter for the question.",
        ),
        "several methods": (
            "Solve it in two ways and compare the results.",
            "Choose the simplest method that works.",
            "Try arithmetic first, then algebra.",
            "If one way is hard, take another one.",
            "Work forwards from the start and backwards from the end.",
        ),
        "understanding": (
            "Explain to yourself what happens in the story.",
            "Understand the situation before you touch the numbers.",
            "Say in your own words what is asked.",
            "Think about what each number stands for.",
            "Keep the units in mind all the way.",
        ),
        "organisation": (
            "List the known quantities in order.",
            "Write down the givens, the plan, and the solution.",
            "Keep a running total as the story goes on.",
            "Give the final answer as a number.",
            "End with the final number on its own line.",
        ),
    }
)

ALL: tuple[str, ...] = tuple(text for kind in SEEDS.values() for text in kind)
