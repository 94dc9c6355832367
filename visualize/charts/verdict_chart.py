"""A verdict, opened: the two distributions behind a draft token, the residual, and what p is compared with.

The draft token comes first. It was accepted if the target's bar rises above the line: u q, or
typical acceptance's threshold.
Block verification compares no single p: it has no line.
"""

from functools import partial

from visualize.charts.base import figure_of

LINES = ("u q", "threshold")
MOST = 10
"""Most tokens shown."""
WIDE = 0.46
"""Half the width of the line over the draft token, a little wider than its bars."""

figure = partial(figure_of, "verdict")
