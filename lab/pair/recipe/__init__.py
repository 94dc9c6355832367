"""The recipe that trained the embedded pair: ``python -m lab.pair.recipe --corpus FILE``."""
