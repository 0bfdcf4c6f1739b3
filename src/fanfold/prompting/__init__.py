"""Prompts as candidates: their parts, how they are varied, written by a model, and searched.

For every study in which prompts evolve.
"""
