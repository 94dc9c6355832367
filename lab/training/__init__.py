"""The recipe that trained the embedded pair: ``python -m lab.training --corpus FILE``."""
