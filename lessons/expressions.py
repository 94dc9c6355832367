"""The small language in which a lesson computes with what was measured.

``ratio(runs.none.itl_p50_ms, runs.cache.itl_p50_ms) > 2`` is one: numbers and words, names of figures, + - * /,
comparisons, ``and``, ``or``, ``not``, ``a if b else c``, and calls of ``FUNCTIONS``. It is read with Python's own
parser, but allows nothing else of Python: no other name, no index, no import, no call of anything a figure holds.

A figure of repeated runs is a list with one number per repeat. Wherever one number is wanted, its median is taken;
``ratio`` divides repeat by repeat first, since what slows a repeat down slows both of its runs.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lab.engine.adaptive_window import tokens_per_round
from lab.errors import LabError
from lab.measure.interval import factor_interval, ratios
from lab.measure.scaling_fit import TOGETHER
from lab.measure.theory import speedup, tree_tokens

Figures = Mapping[str, Any]
"""What was measured: numbers, words and lists of numbers by name, nested by the dots in a name."""
Value = float | bool | str | Sequence[float]
MOST_CHARACTERS = 1000
MOST_DRAFT_TOKENS = 64


class ExpressionError(LabError, ValueError):
    """Text that is not an expression, or one that cannot be computed from these figures."""


# -- functions -------------------------------------------------------------------------------


def number(value: Value) -> float:
    """A value as one number: a list's is its median."""
    if isinstance(value, (list, tuple)) and value:
        value = statistics.median(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ExpressionError(f"{_named(value)} stands where a number is wanted.")
    if not abs(value) <= sys.float_info.max:
        raise ExpressionError("a number has become too large to compute with.")
    return float(value)


def _numbers(values: Value) -> Sequence[float]:
    if not isinstance(values, (list, tuple)) or not values:
        raise ExpressionError(f"{_named(values)} stands where several numbers are wanted.")
    return values


def _named(value: Any) -> str:
    return "a word" if isinstance(value, str) else "yes or no" if isinstance(value, bool) else f"{str(value)[:40]!r}"


def _ratios(above: Value, below: Value) -> list[float]:
    """The ratios repeat by repeat; a single one unless both are lists of the same length."""
    if isinstance(above, (list, tuple)) and isinstance(below, (list, tuple)) and len(above) == len(below):
        return ratios(above, below)
    return [number(above) / number(below)]


def _likely(above: Value, below: Value) -> tuple[float, float]:
    """The interval by which charts of speeds tell a clear difference; of a single ratio only that."""
    found = factor_interval(_ratios(above, below))
    return (found.value, found.value) if found.low is None else (found.low, found.high)


def _clearly(above: Value, below: Value, more: Value, less: Value, neither: Value) -> Value:
    """``more`` if ``above`` is clearly greater, ``less`` if it is clearly smaller."""
    low, high = _likely(above, below)
    return more if low > 1 else less if high < 1 else neither


def _apart(above: Value, below: Value, more: Value, less: Value, neither: Value) -> Value:
    """As ``_clearly``, by the interval of the mean difference and not of the ratio: the figures may be zero."""
    pairs = list(zip(_numbers(above), _numbers(below), strict=True))
    unit = max(map(abs, itertools.chain(*pairs))) or 1.0
    found = factor_interval([math.exp((a - b) / unit) for a, b in pairs])
    low, high = (found.value if end is None else end for end in (found.low, found.high))
    return more if low > 1 else less if high < 1 else neither


def _gamma(value: Value) -> int:
    gamma = number(value)
    if not 0 <= gamma <= MOST_DRAFT_TOKENS:
        raise ExpressionError(f"a round has 0 to {MOST_DRAFT_TOKENS} draft tokens, not {gamma:g}.")
    return int(gamma)


def _near(xs: Value, ys: Value, x: Value) -> float:
    """Median of those ``ys`` whose ``xs`` are the ten nearest to ``x``."""
    wanted = number(x)
    pairs = sorted(zip(_numbers(xs), _numbers(ys), strict=True), key=lambda pair: abs(pair[0] - wanted))
    return statistics.median(y for _, y in pairs[:TOGETHER])


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "ratio": lambda above, below: statistics.median(_ratios(above, below)),
    "lowest_ratio": lambda above, below: min(_ratios(above, below)),
    "highest_ratio": lambda above, below: max(_ratios(above, below)),
    "ratio_low": lambda above, below: _likely(above, below)[0],
    "ratio_high": lambda above, below: _likely(above, below)[1],
    "clearly": _clearly,
    "apart": _apart,
    "ratios": _ratios,
    "highest": lambda *values: max(values, key=number),
    "lowest": lambda *values: min(values, key=number),
    "median": lambda values: statistics.median(_numbers(values)),
    "near": _near,
    "tokens_per_round": lambda acceptance, gamma: tokens_per_round(number(acceptance), _gamma(gamma)),
    "speedup": lambda acceptance, gamma, cost: speedup(number(acceptance), _gamma(gamma), number(cost)),
    "tree_tokens": lambda nodes, *ranks: tree_tokens(_gamma(nodes), [number(rank) for rank in ranks]),
}
"""What an expression may call. ``ratio``: for two lists, the median of the ratios repeat by repeat; ``lowest_ratio``,
``highest_ratio``: the least and the greatest of these. ``ratio_low``, ``ratio_high``: the ends of the mean ratio's 95%
interval; a difference is clear if 1 is not between them, and ``clearly`` chooses one of three texts by that;
``apart`` does by the mean difference, for figures that may be zero.
``ratios``: those of all repeats, to be compared with others. ``highest``, ``lowest``: the one of several figures whose
median is that, with all its repeats. ``tokens_per_round`` and ``speedup``: equation 1 and theorem 3.8 of Leviathan et
al. (2211.17192), of acceptance rate, gamma and (the latter) the draft's cost. ``tree_tokens``: of so many draft tokens,
and of how often the drafter's likeliest token is right, its second, and so on."""


# -- the language ----------------------------------------------------------------------------

_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_SAME = {ast.Eq: operator.eq, ast.NotEq: operator.ne}
_COMPARED = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge} | _SAME


class Expression:
    """An expression, parsed and checked.

    Attributes:
        names: the dotted names of the figures that it asks for.

    Raises ExpressionError: it is not in the language.
    """

    def __init__(self, text: object) -> None:
        self.text = str(text).strip()  # a bare number in YAML is no text
        if len(self.text) > MOST_CHARACTERS:
            raise ExpressionError(f"an expression has at most {MOST_CHARACTERS} characters; this has {len(self.text)}.")
        try:
            self._root = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise ExpressionError(
                f"{self.text!r} is no expression. One is, as an example: ratio(runs.a.ttft_ms, runs.b.ttft_ms) > 2"
            ) from None
        self.names = tuple(_names(self._root))

    def value(self, figures: Figures) -> Value:
        """Value of the expression. Raises ExpressionError: a figure is missing or of a kind that cannot be computed
        with, or a division by zero."""
        try:
            return _value(self._root, figures)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ExpressionError(f"{self.text!r} cannot be computed: {error}") from error

    def number(self, figures: Figures) -> float:
        """Its value as one number. Raises as ``value``."""
        return number(self.value(figures))

    def holds(self, figures: Figures) -> bool:
        """Its value as yes or no. Raises as ``value``."""
        if not isinstance(value := self.value(figures), bool):
            raise ExpressionError(f"{self.text!r} is neither true nor false; compare something.")
        return value

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _names(*nodes: ast.expr) -> Iterator[str]:
    """The names in them. Raises ExpressionError for a part that is not in the language."""
    for node in nodes:
        match node:
            case ast.Constant(value=int() | float() | str()):
                pass
            case ast.Name() | ast.Attribute():
                yield _dotted(node)
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                yield from _names(node.left, node.right)
            case ast.UnaryOp(op=ast.USub() | ast.Not()):
                yield from _names(node.operand)
            case ast.BoolOp():
                yield from _names(*node.values)
            case ast.Compare() if all(type(op) in _COMPARED for op in node.ops):
                yield from _names(node.left, *node.comparators)
            case ast.IfExp():
                yield from _names(node.test, node.body, node.orelse)
            case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
                yield from _names(*node.args)
            case ast.Call(func=ast.Name(id=name)):
                raise ExpressionError(f"there is no function {name}; there are {', '.join(FUNCTIONS)}.")
            case _:
                raise ExpressionError(
                    f"{ast.unparse(node)!r} is not in the language: numbers, words, names of figures, + - * /, "
                    "comparisons, and, or, not, a if b else c, and functions."
                )


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=before, attr=name) if not name.startswith("_"):
            return f"{_dotted(before)}.{name}"
    raise ExpressionError(f"{ast.unparse(node)!r} is no name of a figure.")


def _value(node: ast.expr, figures: Figures) -> Value:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return _found(figures, _dotted(node))
        case ast.BinOp():
            return _ARITHMETIC[type(node.op)](*(number(_value(side, figures)) for side in (node.left, node.right)))
        case ast.UnaryOp(op=ast.USub()):
            return -number(_value(node.operand, figures))
        case ast.UnaryOp():
            return not _truth(node.operand, figures)
        case ast.BoolOp():
            return (all if isinstance(node.op, ast.And) else any)(_truth(part, figures) for part in node.values)
        case ast.Compare():
            values = [_value(part, figures) for part in (node.left, *node.comparators)]
            return all(_compare(op, *values[i : i + 2]) for i, op in enumerate(node.ops))
        case ast.IfExp():
            return _value(node.body if _truth(node.test, figures) else node.orelse, figures)
        case ast.Call():
            return FUNCTIONS[node.func.id](*(_value(part, figures) for part in node.args))
    raise AssertionError("a node that was not refused")


def _truth(node: ast.expr, figures: Figures) -> bool:
    value = _value(node, figures)
    if not isinstance(value, bool):
        raise ExpressionError(f"{ast.unparse(node)!r} is neither true nor false.")
    return value


def _compare(op: ast.cmpop, left: Value, right: Value) -> bool:
    if type(op) in _SAME and (isinstance(left, str) or isinstance(right, str)):
        return _SAME[type(op)](left, right)
    return _COMPARED[type(op)](number(left), number(right))


def _found(figures: Figures, name: str) -> Value:
    """The figure of a dotted name. Raises ExpressionError: there is none."""
    found: Any = figures
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise ExpressionError(f"{name} was not measured.")
        found = found[part]
    if isinstance(found, Mapping):
        raise ExpressionError(f"{name} is not a figure but has some: {', '.join(map(str, found))}.")
    return found
