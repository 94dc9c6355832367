"""Products of few rows compared with float64: in Triton's interpreter, or compiled where there is a GPU."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

from lab.backends.gpu import fused_product as product
from lab.backends.gpu.fused_product import MOST_ROWS, add_product, gated_product, normed_product
from tests.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("new_inputs", "poisoned_outputs")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPSILON = 1e-5
ERROR = 8e-3
"""A step of bfloat16, relative. The interpreter truncates instead of rounding."""


class Case:
    """A matrix, a norm and rows of very different sizes in bfloat16, and the normed rows in float64."""

    def __init__(self, rows: int, inputs: int, outputs: int) -> None:
        sizes = torch.logspace(-2, 2, rows)[:, None]
        self.x = self._made(rows, inputs, scale=sizes)
        self.norm = self._made(inputs)
        self.weight, self.bias = self._made(outputs, inputs), self._made(outputs)
        self.to = self._made(rows, outputs, scale=sizes)
        self.normed = F.rms_norm(self.x.double(), (inputs,), self.norm.double(), EPSILON)

    def assert_near(self, ours: torch.Tensor, exact: torch.Tensor, size: torch.Tensor) -> None:
        """``size``: of the terms that were added up; they are rounded once before, and their sum once after. The errors
        of their rounding, at most half a step each, add up to a third of ``size`` steps (standard deviation)."""
        assert ours.dtype == torch.bfloat16
        fits = len(ours) <= MOST_ROWS and self.x.shape[1] % 16 == ours.shape[1] % 32 == 0
        steps = 1 if fits else 4  # torch rounds in between
        allowed = ERROR * steps * (exact.abs() + size) + 1e-6
        assert ((ours.double() - exact).abs() / allowed).max() < 1

    def _made(self, *shape: int, scale: torch.Tensor | float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape) * scale).bfloat16().to(DEVICE)


def length(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[rows, outputs]: root of the sum of squares of a product's terms, to which their rounding errors grow."""
    return (x.double().square() @ weight.double().square().t()).sqrt()


@parametrize_pairwise(
    kind=["normed", "normed, biased", "gated", "added"],
    rows=[1, 5, MOST_ROWS, MOST_ROWS + 1],  # the last is too many, and left to torch
    # Several tiles per row, of the largest and of the smallest size; and no whole number of tiles, left to torch.
    shape=[(512, 64), (48, 32), (56, 32), (64, 7)],
)
def test_a_product_is_close_to_float64(kind, rows, shape):
    inputs, outputs = shape
    case = Case(rows, inputs, outputs * (1 + (kind == "gated")))
    if kind == "gated":
        case.weight /= 4
        ours = gated_product(case.x, case.norm, EPSILON, case.weight)
        gate, up = F.linear(case.normed, case.weight.double()).chunk(2, -1)
        of_gate, of_up = length(case.normed, case.weight).chunk(2, -1)
        size = of_gate * up.abs() + of_up * F.silu(gate).abs() + of_gate * of_up / 100
        case.assert_near(ours, F.silu(gate) * up, size)
    elif kind == "added":
        exact = case.to.double() + F.linear(case.x.double(), case.weight.double())
        ours = add_product(case.to, case.x, case.weight)
        assert ours is case.to
        case.assert_near(ours, exact, length(case.x, case.weight))
    else:
        bias = case.bias if "biased" in kind else None
        ours = normed_product(case.x, case.norm, EPSILON, case.weight, bias)
        exact = F.linear(case.normed, case.weight.double(), bias if bias is None else bias.double())
        case.assert_near(ours, exact, length(case.normed, case.weight))


def everything(case: Case) -> list[torch.Tensor]:
    return [
        normed_product(case.x, case.norm, EPSILON, case.weight, case.bias),
        gated_product(case.x, case.norm, EPSILON, case.weight),
        add_product(case.to.clone(), case.x, case.weight),
    ]


def test_a_row_gives_the_same_bits_alone_and_in_a_batch():
    """A verification computes of a token what its own decode step would. NaN stays in its row."""
    case = Case(16, 512, 64)
    case.x[3], case.x[9] = 0, torch.nan
    together = everything(case)
    for row in (0, 3, 15):
        alone = Case(1, 1, 1)
        for name in ("x", "to"):
            setattr(alone, name, getattr(case, name)[row : row + 1].clone())
        for name in ("norm", "weight", "bias"):
            setattr(alone, name, getattr(case, name))
        for ours, one in zip(together, everything(alone), strict=True):
            assert torch.equal(ours[row], one[0])
            assert ours[row].isfinite().all()
            assert ours[9].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes_are_left_to_torch(monkeypatch, dtype):
    """In float16 an input may overflow when it is multiplied by a norm's weight before its scale."""
    monkeypatch.setattr(product, "_launch", None)
    x, norm, weight = 3e4 + torch.zeros(2, 64), torch.full([64], 8.0), torch.eye(64)
    x, norm, weight = (tensor.to(DEVICE, dtype) for tensor in (x, norm, weight))
    assert (normed_product(x, norm, EPSILON, weight, None) == 8).all()
    assert gated_product(x, norm, EPSILON, weight).isfinite().all()
    assert (add_product(x / 2, x / 4, weight) == 3e4 * 0.75).all()


@pytest.mark.parametrize("why", ["inputs", "outputs", "a matrix that lies on its side"])
def test_shapes_and_layouts_that_do_not_fit_the_tiles_are_left_to_torch(monkeypatch, why):
    monkeypatch.setattr(product, "_launch", None)
    case = Case(2, 56 if why == "inputs" else 64, 14 if why == "outputs" else 32)
    if why == "a matrix that lies on its side":
        case.weight = case.weight.t().contiguous().t()
    ours = add_product(case.to.clone(), case.x, case.weight)
    assert torch.equal(ours, case.to.addmm(case.x, case.weight.t()))
    assert len(normed_product(case.x, case.norm, EPSILON, case.weight, None)) == len(case.x)
    assert len(gated_product(case.x, case.norm, EPSILON, case.weight)) == len(case.x)
