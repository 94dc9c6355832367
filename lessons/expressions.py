"""The small language in which a lesson computes with what was measured.

``ratio(runs.none.itl_p50_ms, runs.cache.itl_p50_ms) > 2`` is one: numbers and words, names of figures, + - * /,
comparisons, ``and``, ``or``, ``not``, ``a if b else c``, and calls of ``FUNCTIONS``. It is read with Python's own
parser, but allows nothing else of Python: no other name, no index, no import, no call of anything a figure holds.

A figure of repeated runs is a list with one number per repeat. Wherever one number is wanted, its median is taken;
``ratio`` divides repeat by repeat first, since what slows a repeat down slows both of its runs.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterator, Mapping
from typing import Any

from lessons.functions import FUNCTIONS, ExpressionError, Value, number

Figures = Mapping[str, Any]
"""What was measured: numbers, words and lists of numbers by name, nested by the dots in a name."""

MOST_CHARACTERS = 400

_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
_ORDER = {ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge}
_SAME = {ast.Eq: operator.eq, ast.NotEq: operator.ne}


class Expression:
    """An expression, parsed and checked.

    Raises:
        ExpressionError: it is not in the language.
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
        """The dotted names of the figures that it asks for."""

    def value(self, figures: Figures) -> Value:
        """Value of the expression.

        Raises:
            ExpressionError: a figure is missing or of a kind that cannot be computed with, or a division by zero.
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
    """The names in it. Raises ExpressionError for a part that is not in the language."""
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
