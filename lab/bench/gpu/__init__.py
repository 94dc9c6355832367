"""``python -m lab.bench gpu``: what a GPU does with the engine, in one call of a few minutes."""
