"""One question to a model for every row of a table: a row in, a row out.

A trial is a row, a case is a model, and a cell is one call and its answer.  So a run of any size takes the memory of
the rows under way, and rows with equal prompts are asked once.
"""
