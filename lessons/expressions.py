"""The small language in which a lesson computes with what was measured.

``ratio(runs.none.itl_p50_ms, runs.cache.itl_p50_ms) > 2`` is one: numbers and words, names of figures, + - * /,
comparisons, ``and``, ``or``, ``not``, ``a if b else c``, and calls of ``FUNCTIONS``. It is read with Python's own
parser and nothing else of Python is in it: no other name, no index, no import, no call of anything a figure holds.

A figure of repeated runs is a list, a number a repeat. Wherever one number is wanted its median is taken;
``ratio`` divides repeat by repeat first, since what held up a repeat held up both of its runs.
"""

from __future__ import annotations

import ast
import math
import operator
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lab.bench.growth import TOGETHER, fit_line
from lab.bench.theory import speedup
from lab.config import LabError
from lab.decode.window import tokens_per_round

Figures = Mapping[str, Any]
"""What was measured: numbers, words and lists of numbers, by name, in as many levels as there are dots in a name."""
Value = float | bool | str | Sequence[float]

MOST_CHARACTERS = 400
MOST_GUESSES = 64


class ExpressionError(LabError, ValueError):
    """An expression that is none, or that cannot be computed from these figures."""


def number(value: Value) -> float:
    """One number: of a list its median."""
    if isinstance(value, (list, tuple)) and value:
        value = statistics.median(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ExpressionError(f"{_named(value)} stands where a number is wanted.")
    if not abs(value) <= sys.float_info.max:
        raise ExpressionError("a number has become too large to compute with.")
    return float(value)


def ratio(above: Value, below: Value) -> float:
    """``above`` / ``below``; of two lists the median of the ratios, repeat by repeat."""
    if isinstance(above, (list, tuple)) and isinstance(below, (list, tuple)) and len(above) == len(below):
        return statistics.median(a / b for a, b in zip(above, below, strict=True))
    return number(above) / number(below)


def _gamma(value: Value) -> int:
    gamma = number(value)
    if not 0 <= gamma <= MOST_GUESSES:
        raise ExpressionError(f"a round has 0 to {MOST_GUESSES} guesses, not {gamma:g}.")
    return int(gamma)


def _numbers(values: Value) -> Sequence[float]:
    if not isinstance(values, (list, tuple)) or not values:
        raise ExpressionError(f"{_named(values)} stands where several numbers are wanted.")
    return values


def near(xs: Value, ys: Value, x: Value) -> float:
    """Median of those ``ys`` whose ``xs`` are the ten nearest to ``x``."""
    wanted = number(x)
    pairs = sorted(zip(_numbers(xs), _numbers(ys), strict=True), key=lambda pair: abs(pair[0] - wanted))
    return statistics.median(y for _, y in pairs[:TOGETHER])


def exponent(xs: Value, ys: Value) -> float:
    """The k with which y grows as x^k: the slope of the line through the logarithms."""
    return fit_line(tuple(map(math.log, _numbers(xs))), tuple(map(math.log, _numbers(ys)))).slope


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "ratio": ratio,
    "median": lambda values: statistics.median(_numbers(values)),
    "total": lambda values: sum(_numbers(values)),
    "lowest": lambda values: min(_numbers(values)),
    "highest": lambda values: max(_numbers(values)),
    "smaller": lambda a, b: min(number(a), number(b)),
    "larger": lambda a, b: max(number(a), number(b)),
    "near": near,
    "exponent": exponent,
    "slope": lambda x, y: fit_line(tuple(_numbers(x)), tuple(_numbers(y))).slope,
    "tokens_per_round": lambda acceptance, gamma: tokens_per_round(number(acceptance), _gamma(gamma)),
    "speedup": lambda acceptance, gamma, cost: speedup(number(acceptance), _gamma(gamma), number(cost)),
}
"""What an expression may call. ``slope``: of a line through points, by least squares. ``tokens_per_round`` and
``speedup``: equation 1 and theorem 3.8 of Leviathan et al. (2211.17192), of acceptance rate, gamma and (the latter) the
draft's cost."""

_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_ORDER = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_SAME = {ast.Eq: operator.eq, ast.NotEq: operator.ne}


class Expression:
    """An expression, parsed and found to be in the language.

    Raises:
        ExpressionError: it is not.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            text = str(text)  # a bare number in YAML
        self.text = text.strip()
        if len(self.text) > MOST_CHARACTERS:
            raise ExpressionError(f"an expression has at most {MOST_CHARACTERS} characters; this has {len(self.text)}.")
        try:
            self._root = ast.parse(self.text, mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise ExpressionError(
                f"{self.text!r} is no expression. One is, as an example: ratio(runs.a.ttft_ms, runs.b.ttft_ms) > 2"
            ) from None
        self.names = tuple(_names(self._root))
        """Every figure that it asks for, with dots."""

    def value(self, figures: Figures) -> Value:
        """What it comes to.

        Raises:
            ExpressionError: a figure is not there, or of a kind that cannot be computed with; a division by zero.
        """
        try:
            return _value(self._root, figures)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ExpressionError(f"{self.text!r} cannot be computed: {error}") from error

    def number(self, figures: Figures) -> float:
        """Its value as one number. Raises as ``value``."""
        return number(self.value(figures))

    def holds(self, figures: Figures) -> bool:
        """Its value as yes or no. Raises as ``value``."""
        value = self.value(figures)
        if not isinstance(value, bool):
            raise ExpressionError(f"{self.text!r} is neither true nor false; compare something.")
        return value

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _names(node: ast.expr) -> Iterator[str]:
    """The names in it, all parts of it being in the language."""
    match node:
        case ast.Constant(value=int() | float() | str()):
            return
        case ast.Name() | ast.Attribute():
            yield _dotted(node)
        case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
            yield from _all(node.left, node.right)
        case ast.UnaryOp(op=ast.USub() | ast.Not()):
            yield from _names(node.operand)
        case ast.BoolOp():
            yield from _all(*node.values)
        case ast.Compare() if all(type(op) in _ORDER | _SAME for op in node.ops):
            yield from _all(node.left, *node.comparators)
        case ast.IfExp():
            yield from _all(node.test, node.body, node.orelse)
        case ast.Call(func=ast.Name(id=name), keywords=[]) if name in FUNCTIONS:
            yield from _all(*node.args)
        case ast.Call(func=ast.Name(id=name)):
            raise ExpressionError(f"there is no function {name}; there are {', '.join(FUNCTIONS)}.")
        case _:
            raise ExpressionError(
                f"{ast.unparse(node)!r} is not in the language: numbers, words, names of figures, + - * /, "
                "comparisons, and, or, not, a if b else c, and functions."
            )


def _all(*nodes: ast.expr) -> Iterator[str]:
    for node in nodes:
        yield from _names(node)


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
            return find(figures, _dotted(node))
        case ast.BinOp():
            left, right = (number(_value(side, figures)) for side in (node.left, node.right))
            return _ARITHMETIC[type(node.op)](left, right)
        case ast.UnaryOp(op=ast.USub()):
            return -number(_value(node.operand, figures))
        case ast.UnaryOp():
            return not _truth(node.operand, figures)
        case ast.BoolOp(op=ast.And()):
            return all(_truth(part, figures) for part in node.values)
        case ast.BoolOp():
            return any(_truth(part, figures) for part in node.values)
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
    return (_ORDER | _SAME)[type(op)](number(left), number(right))


def find(figures: Figures, name: str) -> Value:
    """The figure of a dotted name.

    Raises:
        ExpressionError: there is none.
    """
    found: Any = figures
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise ExpressionError(f"{name} was not measured.")
        found = found[part]
    if isinstance(found, Mapping):
        raise ExpressionError(f"{name} is not a figure but has some: {', '.join(map(str, found))}.")
    return found


def _named(value: Any) -> str:
    return "a word" if isinstance(value, str) else "yes or no" if isinstance(value, bool) else f"{str(value)[:40]!r}"
