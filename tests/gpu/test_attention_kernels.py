"""Triton's kernels against the reference: in the interpreter, or for real where there is a GPU."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the package triton is not installed (requirements-test.txt)")

import triton
import triton.language as tl

from lab.backends.gpu import launching
from lab.backends.gpu import paged_attention as attend_kernel
from lab.backends.gpu.dequantize import halves
from lab.backends.gpu.paged_attention import attend
from lab.backends.gpu.store_kv import store
from lab.kv_cache.attention_metadata import ONLY_SCALED, BlockPlan, Scores
from lab.kv_cache.storage import KERNEL_FORMATS, KVStorage
from tests.pairwise import parametrize_pairwise

pytestmark = pytest.mark.usefixtures("new_inputs", "poisoned_outputs")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ERROR = {torch.float32: 4e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
"""Largest difference to float64, of values that are normally distributed: a few of the dtype's steps."""


def poisoned(kv_format: str, slots: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> KVStorage:
    storage = KVStorage(kv_format, slots, layers=1, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype, device=DEVICE)
    for tensor in storage.layers[0].tensors:
        tensor.fill_(torch.nan if tensor.is_floating_point() else 77)
    return storage


class Case:
    """Sequences of given lengths whose last tokens are new, in shuffled blocks of a poisoned cache."""

    def __init__(
        self,
        kv_format: str,
        lengths: list[int],
        new: list[int],
        *,
        block_size: int = 16,
        kv_heads: int = 2,
        shared: int = 2,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float32,
        size: float = 1,
        scores: Scores = ONLY_SCALED,
    ) -> None:
        """``size``: of the values."""
        heights = [-(-length // block_size) for length in lengths]
        blocks = torch.randperm(sum(heights) + 1)
        self.storage = poisoned(kv_format, len(blocks) * block_size, kv_heads, head_dim, dtype)
        self.layer = self.storage.layers[0]
        # Tables are padded with a block that nobody wrote to.
        tables = blocks[-1].repeat(len(lengths), max(heights))
        self.slots = []
        for row, (taken, length, count) in enumerate(zip(blocks[:-1].split(heights), lengths, new, strict=True)):
            tables[row, : len(taken)] = taken
            if scores.window:  # blocks that slid out were freed
                tables[row, : max(0, length - count + 1 - scores.window) // block_size] = -1
            slots = (taken[:, None] * block_size + torch.arange(block_size)).flatten()[:length].to(DEVICE)
            key, value = torch.randn(2, length, kv_heads, head_dim, dtype=dtype, device=DEVICE)
            self.layer.write(slots, key, size * value)
            self.slots.append(slots)
        whole = random.choice([torch.int32, torch.int64])
        # The heads' rows lie apart, as in a model.
        self.query = torch.randn(kv_heads * shared, sum(new), head_dim, dtype=dtype, device=DEVICE).transpose(0, 1)
        self.new, self.shared, self.size, self.scores = new, shared, size, scores
        self.plan = BlockPlan(
            write=torch.cat([slots[-count:] for slots, count in zip(self.slots, new, strict=True)]),
            starts=torch.tensor([0, *new]).cumsum(0).to(DEVICE, whole),
            lengths=torch.tensor(lengths).to(DEVICE, whole),
            tables=tables.to(DEVICE, whole),
            block_size=block_size,
            longest_new=max(new),
            longest=max(lengths),
            storage=self.storage,
        )

    def expected(self) -> torch.Tensor:
        """In float64, each sequence by itself."""
        outputs = []
        for slots, query in zip(self.slots, self.query.double().split(self.new), strict=True):
            key, value = (x.double().repeat_interleave(self.shared, 1) for x in self.layer.read(slots))
            score = torch.einsum("qhd,khd->hqk", query, key) * query.shape[-1] ** -0.5
            window, cap, sinks = self.scores
            if cap:
                score = cap * (score / cap).tanh()
            every, first = torch.ones(score.shape[1:], dtype=torch.bool, device=DEVICE), len(slots) - len(query)
            unseen = every.triu(first + 1) | (every.tril(first - window) if window else False)
            score = score.masked_fill(unseen, -torch.inf)
            if sinks is not None:
                score = torch.cat([score, sinks.double()[:, None, None].expand(-1, len(query), 1)], dim=-1)
            weight = score.softmax(-1)[..., : len(slots)]
            outputs.append(torch.einsum("hqk,khd->qhd", weight, value))
        return torch.cat(outputs)

    def error(self, *, splits: int | None = None) -> float:
        """The largest, over the one that the dtype is granted."""
        out = attend(self.layer, self.query, self.plan, scores=self.scores, splits=splits)
        assert out.dtype == self.query.dtype
        return (out.double() - self.expected()).abs().max().item() / (self.size * ERROR[self.query.dtype])


# -- storing ---------------------------------------------------------------------------------


@pytest.mark.slow
@parametrize_pairwise(
    kv_format=KERNEL_FORMATS, dtype=[torch.float32, torch.float16, torch.bfloat16], head_dim=[12, 64, 80, 128]
)
def test_the_kernel_stores_what_the_reference_stores(kv_format, dtype, head_dim):
    """Large vectors and small ones, zeros, and numbers half-way between two steps: the same bits on a CPU."""
    key, value = torch.randn(2, 9, 3, head_dim, device=DEVICE)
    size = torch.logspace(-30, 4, 9, device=DEVICE)[:, None, None]
    key, value = (key * size).to(dtype), (value * size.flip(0)).to(dtype)
    key[3], value[4] = 0, 0
    key[5] = torch.arange(head_dim, device=DEVICE)[None] - head_dim // 2
    slots = torch.randperm(20, device=DEVICE)[:9]
    ours, theirs = (poisoned(kv_format, 20, 3, head_dim, dtype).layers[0] for _ in range(2))
    # The first is laid out as rotary embeddings leave keys, the second as a projection leaves values.
    store(ours, slots, key.transpose(0, 1).contiguous().transpose(0, 1), value)
    theirs.write(slots, key, value)
    for our, their in zip(ours.tensors, theirs.tensors, strict=True):
        if DEVICE.type == "cpu":
            assert torch.equal(our.view(torch.uint8), their.view(torch.uint8))
    for our, their in zip(ours.read(slots), theirs.read(slots), strict=True):
        # On a GPU torch's own division may round a scale, and then a number, the other way: at most a step. Their
        # products are rounded as well.
        largest = their.float().abs().amax(-1, keepdim=True)
        step = {"auto": 0, "int8": 1 / 127, "int4": 1 / 7}[kv_format] * (1 + 127 * torch.finfo(dtype).eps) * largest
        assert ((our.float() - their.float()).abs() <= step).all()


@pytest.mark.parametrize("kv_format", KERNEL_FORMATS)
def test_a_row_without_a_slot_is_not_written(kv_format):
    """Slot -1: the row pads a captured step. Not the last slot, nor what lies before the first."""
    ours, theirs = (poisoned(kv_format, 6, 2, 64, torch.float32).layers[0] for _ in range(2))
    key, value = torch.randn(2, 4, 2, 64, device=DEVICE)
    store(ours, torch.tensor([3, -1, 0, -1], device=DEVICE), key, value)
    store(theirs, torch.tensor([3, 0], device=DEVICE), key[::2], value[::2])
    for our, their in zip(ours.tensors, theirs.tensors, strict=True):
        assert torch.equal(our.view(torch.uint8), their.view(torch.uint8))


@parametrize_pairwise(kv_format=["int8", "int4"], odd=[torch.nan, -torch.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_non_finite_values_do_not_become_finite(kv_format, odd):
    layer = poisoned(kv_format, 2, 1, 64, torch.float32).layers[0]
    x = torch.ones(2, 1, 64, device=DEVICE)
    x[1, 0, 3] = odd
    store(layer, torch.arange(2, device=DEVICE), x, x)
    for read in layer.read(slice(0, 2)):
        assert torch.isfinite(read[0]).all()
        assert not torch.isfinite(read[1]).all()


# -- compiling -------------------------------------------------------------------------------

SHARED_MEMORY = 99 * 1024
"""Bytes a program may have on the smallest of today's GPUs, compute capability 8.6 (CUDA C++ Programming Guide)."""
PROCESSOR_MEMORY = 227 * 1024
"""Bytes that the programs on a processor of an H100 or H200 may have together (the same)."""
REGISTERS = 64 * 1024
"""Of a processor (the same). A warp has 32 threads."""


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cuda", reason="Triton compiles here: see the tests marked gpu")
def test_the_kernels_compile_for_an_absent_gpu(tmp_path):
    """To machine code, by Triton's own assembler. Whether it runs, and how fast, only a GPU can say."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.gpu.compile_kernels", "90"],
        cwd=Path(__file__).parents[2],
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    # Seven kinds: store and attend, three of them twice; four times, splits are combined. Three kinds of product, for
    # some rows and for one, and six kernels between: four of them rotate. Two of softmax.
    assert len(lines) == 7 * 2 + 3 + 4 + 3 * 2 + 6 + 2
    waits = {"_attend_kernel", "_combine_kernel", "_product_kernel", "_rotate_kernel", "_store_kernel"}
    for name, rows, warps, shared, registers, in_memory, loads, stores, fetched, *kind in (
        (line[0], *map(int, line[1:9]), *line[9:]) for line in lines
    ):
        assert shared <= SHARED_MEMORY
        assert in_memory <= 128
        # Before it has waited, a kernel reads no more than its plan, and writes nothing.
        assert stores == (0 if name in waits else -1)
        assert loads == (stores if name != "_attend_kernel" else 4)
        assert (fetched > 0) == (name == "_product_kernel")
        if name == "_attend_kernel":
            resident = attend_kernel.RESIDENT[kind[0]] if rows <= 16 else attend_kernel.RESIDENT_WIDE
            assert resident * 32 * warps * registers <= REGISTERS
            assert resident * shared <= PROCESSOR_MEMORY
        if name == "_product_kernel":
            assert 2 * shared <= PROCESSOR_MEMORY


# -- attending -------------------------------------------------------------------------------


LENGTHS = {
    "a token, several and a prompt": ([1, 75, 150, 5], [1, 1, 3, 5]),
    "at the ends of blocks": ([48, 49, 130], [1, 2, 1]),
    "more new tokens than a tile": ([24, 20, 12], [18, 1, 12]),
    "short": ([17, 90], [4, 1]),
}


@pytest.mark.slow
@parametrize_pairwise(
    form=["auto float32", "auto float16", "int8 float16", "int4 float16", "int8 bfloat16", "int4 float32"],
    head_dim=[64, 128, 12, 80],
    shared=[1, 4, 2, 7],
    splits=[None, 4, 2],
    block_size=[16, 1, 24, 128],
    lengths=list(LENGTHS),
)
def test_attention_is_close_to_float64(form, head_dim, shared, splits, block_size, lengths):
    """Also where some splits of short sequences are empty, and where sizes are no powers of two."""
    kv_format, dtype = form.split()
    shape = {"head_dim": head_dim, "shared": shared, "block_size": block_size, "dtype": getattr(torch, dtype)}
    assert Case(kv_format, *LENGTHS[lengths], kv_heads=1 if shared > 2 else 2, **shape).error(splits=splits) < 1


SINKS = {"none": None, "small": [-9.0, -1.0, 0.0, 1.0], "large": [90.0, 4.0, 9.0, -90.0]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of rows that pad a tile and see nothing
@parametrize_pairwise(
    form=["auto float32", "auto float16", "int8 float16", "int4 bfloat16"],
    window=[None, 1, 7, 40, 1000],
    softcap=[None, 0.7],
    sinks=list(SINKS),
    splits=[None, 4, 2],
    block_size=[16, 1, 24],
    lengths=list(LENGTHS),
)
def test_windows_softcaps_and_sinks_are_close_to_float64(form, window, softcap, sinks, splits, block_size, lengths):
    """What slid out of the window has no blocks any more: reading there is an error in the interpreter."""
    kv_format, dtype = form.split()
    scores = Scores(window, softcap, SINKS[sinks] and torch.tensor(SINKS[sinks], device=DEVICE))
    shape = {"block_size": block_size, "dtype": getattr(torch, dtype), "scores": scores}
    assert Case(kv_format, *LENGTHS[lengths], kv_heads=2, **shape).error(splits=splits) < 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_prompt_beside_many_that_decode(monkeypatch, dtype):
    """Programs for the tokens that there are, not for as many of each sequence as the longest has."""
    grids, kernel = [], attend_kernel._attend_kernel

    class Launched:
        def __getitem__(self, grid):
            grids.append(grid)
            return kernel[grid]

    monkeypatch.setattr(attend_kernel, "_attend_kernel", Launched())
    monkeypatch.setattr(attend_kernel, "_processors", lambda device: 1)  # a sequence is not split
    new = [1] * 20
    new[random.randrange(20)], new[random.randrange(20)] = 50, 17  # one of them may be all there is
    assert Case("auto", [length + 3 for length in new], new, shared=4, kv_heads=1, dtype=dtype).error() < 1
    tile = {torch.float32: 16, torch.float16: 64}[dtype] // 4
    assert grids == [(sum(new) // tile + 20, 1, 1)]
    assert Case("auto", [4] * 20, [1] * 20, shared=4, kv_heads=1, dtype=dtype).error() < 1
    assert grids[1:] == [(20, 1, 1)]


@triton.jit
def _halve(x, found, units, ROWS: tl.constexpr, DIMS: tl.constexpr):
    i, row, half = tl.arange(0, DIMS), tl.arange(0, ROWS), tl.arange(0, 2 * ROWS)
    both, unit = halves(tl.load(x + row[:, None] * DIMS + i[None, :]))
    tl.store(found + half[:, None] * DIMS + i[None, :], both)
    tl.store(units + row, unit)


def test_a_query_in_two_halves_is_exact_to_15_bits():
    """Numbers that are multiples of 1/127/128 of the largest are exact, others off by half a unit; a row may be 0.

    In between stand numbers up to 2^14 units in float32, whose last bit is 2^-10: a sum is off by half of it, and a
    GPU's division by two.
    """
    x = torch.randn(8, 64) * torch.logspace(-20, 4, 8)[:, None]
    x[1] = 0
    x[2] = torch.arange(-16256, 16256, 508).float()
    x[3, 0] = x[3].abs().max() * 1000
    found, units = torch.full((16, 64), 99, dtype=torch.int8, device=DEVICE), torch.empty(8, device=DEVICE)
    _halve[(1,)](x.to(DEVICE), found, units, 8, 64)
    high, low = found.cpu().double().view(8, 2, 64).unbind(1)
    unit = units.cpu().double()[:, None]
    off = ((128 * high + low) * unit - x).abs()
    assert (off <= (0.5 + 2.5 * 2**-10) * unit).all()
    assert not off[2].any()
    assert (unit[:, 0] <= (x.abs().amax(1) / 16256).clamp_min(1e-34) * 1.001).all()


@pytest.mark.parametrize("kv_format", ["int8", "int4"])
def test_where_tensor_cores_take_no_few_columns(monkeypatch, kv_format):
    """Positions are columns then, and INT8's keys are converted like its values."""
    monkeypatch.setattr(attend_kernel, "_takes_few_columns", lambda device: False)
    asked, tiling = [], attend_kernel._tiling
    monkeypatch.setattr(attend_kernel, "_tiling", lambda *asked_for: asked.append(tiling(*asked_for)) or asked[-1])
    case = Case(kv_format, [40, 75], [1, 2], head_dim=128, dtype=torch.float16)
    assert case.error(splits=2) < 1
    assert [(a.axis, a.rows, a.paired, a.warps) for a in asked] == [(1, 16, True, 4)]


@pytest.mark.parametrize(
    ("capability", "hip", "begins", "few"),
    [
        ((8, 9), None, False, True),
        ((9, 0), None, True, True),
        ((10, 0), None, True, False),
        ((12, 0), None, True, True),
        ((9, 4), "7", False, False),
    ],
)
def test_what_depends_on_the_compute_capability(monkeypatch, capability, hip, begins, few):
    """Kernels begin early from 9.0 on, but not on an AMD GPU, which torch calls "cuda", too: a launch that a GPU would
    refuse is not asked for. Products of few columns are not for every tensor core."""
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    early, gpu = launching.early.__wrapped__, torch.device("cuda", 0)
    assert early(gpu) == ({"EARLY": True, "launch_pdl": True} if begins else {"EARLY": False})
    assert early(torch.device("cpu")) == {"EARLY": False}
    assert attend_kernel._takes_few_columns.__wrapped__(gpu) == few


def test_how_many_splits_a_sequence_gets(monkeypatch):
    """On a GPU of 132 processors, for 8 KV heads: as many as run at once, each with something to do."""
    monkeypatch.setattr(attend_kernel, "_processors", lambda device: 132)
    longest = (384, 512, 513, 2048, 8192, 131_072)
    assert [attend_kernel._splits(8, 4, length, 64, DEVICE) for length in longest] == [8, 8, 8, 32, 64, 64]
    assert [attend_kernel._splits(8, 4, length, 128, DEVICE) for length in longest] == [1, 1, 1, 16, 64, 64]
    assert attend_kernel._splits(8, 4, 1, 64, DEVICE) == 8  # captured or not, a short step is the same kernels
    assert [attend_kernel._splits(8 * sequences, 4, 8192, 64, DEVICE) for sequences in (8, 32, 224)] == [8, 2, 1]


@pytest.mark.parametrize("kv_format", KERNEL_FORMATS)
def test_small_values_and_large_scores_keep_their_precision(kv_format):
    """float16 has no exponent to spare. A score of thousands is itself known to a few ten-thousandths."""
    assert Case(kv_format, [90, 17], [1, 4], dtype=torch.float16, size=1e-3).error() < 1
    case = Case(kv_format, [80, 3], [1, 2])
    case.query *= 1e3
    assert case.error(splits=2) < 500


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's
@parametrize_pairwise(odd=[torch.nan, torch.inf, -torch.inf], kv_format=KERNEL_FORMATS)
def test_a_query_that_is_not_finite_is_noticed(kv_format, odd):
    """Also where it is multiplied as integers, which can be neither infinite nor NaN."""
    case = Case(kv_format, [40, 40], [1, 1], dtype=torch.float16)
    case.query[0, 1, 5] = odd
    out = attend(case.layer, case.query, case.plan)
    assert out[0, 1].isnan().all()
    assert out[0, 0].isfinite().all()
    assert out[1].isfinite().all()


@pytest.mark.parametrize("splits", [1, 2])
def test_non_finite_values_are_noticed(splits):
    """By its own sequence, and by no other."""
    case = Case("auto", [40, 40], [1, 1])
    case.layer.tensors[0][case.slots[0][7]] = torch.nan
    out = attend(case.layer, case.query, case.plan, splits=splits)
    assert out[0].isnan().all()
    assert out[1].isfinite().all()
