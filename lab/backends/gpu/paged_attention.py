"""Triton: attention that reads a cache in place, block by block.

A program takes a tile of one sequence's new tokens, with all query heads that share one KV head, and goes
once over the keys and values that they may see, with a running maximum and a running sum but no matrix of
scores in memory (FlashAttention: Dao et al., 2205.14135). A position's slot comes from the block table
(PagedAttention: Kwon et al., 2309.06180); a contiguous sequence has a table too. The causal mask follows
from positions, so a decoded token, a verified window and a prompt's chunk differ only in their number of tokens.

One new token of one sequence is too little work for a GPU: its positions are then split over several
programs, and a second kernel combines their results, weighted by their sums (Flash-Decoding: Dao et al., 2023).

Tensor cores multiply 16 or 64 rows by as few as 8 columns. A decoded token has few query heads that share a KV head:
over a quantised cache, positions are the rows of its products, and what is called a row here, a token's head, is a
column (``P``: the axis of the positions). For more tokens, and for plain caches, it is the other way round.

In a layer with a sliding window a program begins at the first position that its tile's first token sees. A sink
(gpt-oss) is a score without a value: the first split begins with it as the maximum, and adds it to the sum at the end.

An INT8 scale belongs to a whole vector, so it multiplies a score, or a weight, instead of the vector's numbers: a
little more exact than the reference, which rounds dequantised numbers to the model's dtype. How stored numbers become
what is multiplied: ``dequantise``.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from lab.backends.gpu import store_kv
from lab.backends.gpu.dequantize import group_scales, halves, part_of
from lab.backends.gpu.launching import early, launching, let_next_begin, multiplied_in, wait_for_previous
from lab.kv_cache.attention_metadata import ONLY_SCALED, BlockPlan, Scores
from lab.kv_cache.storage import LayerStorage, parts

SHORTEST_CONTEXT = 512
"""Tokens of context that a launch is made for at least."""

LOG2_E = 1.4426950408889634
TO_BASE_2 = tl.constexpr(LOG2_E)
FEWEST_COLUMNS = 8
"""Of a product of tensor cores, which has at least 16 rows."""
MOST_ROWS = 64
"""Most rows of a tile: new tokens x the query heads of a KV head."""
TILE_BYTES = 16 * 1024
"""Bytes of a tile's keys, in the dtype they are multiplied in: two such tiles, twice over, and the query fit the 99 KB
of shared memory that a program can have from compute capability 8.0 on. Twice as many where they lie there in pairs of
bytes, so that the work per tile is done half as often."""
MOST_ROWS_FLOAT32, TILE_BYTES_FLOAT32 = 16, 8 * 1024
"""Float32 is multiplied number by number, not by tensor cores, and a larger tile of it does not fit in a
multiprocessor's registers."""
MOST_SPLITS = 128
MOST_TILES = 4
"""Most tiles of a sequence that is not split: a second kernel then takes longer than it saves (part 3 of ``python -m
lab.bench gpu``)."""
STAGES = {"plain": 2, "int8": 5, "int4": 3}
"""For few rows. With 2, a tile is loaded once the last one has been used: the multiprocessor's other programs fill the
wait. With 3, the next tile's blocks are looked up meanwhile; with 5, two tiles of keys and two of values are on their
way (read in Triton's output)."""
RESIDENT, RESIDENT_WIDE = {"plain": 4, "int8": 2, "int4": 4}, 2
"""Programs that a multiprocessor runs at once: of at most 16 rows, and of more. An H100's has shared memory for so
many: 228 KB of which a program takes 23 to 39 (INT8: 89 or 93), or up to 80 with more rows (heads of 128). On GPUs with
100 KB a sequence may be split into more parts than run at once. Not measured there."""
COMBINED = 32
"""Numbers of a head that a program combines: more would take the few programs that there are longer."""


class Tiling(NamedTuple):
    """Division of attention among programs.

    Attributes:
        rows, columns: of a tile: new tokens x the query heads of a KV head, and positions.
        axis: of the positions in a tile's scores: 0 (they are rows of products then), or 1.
        paired: whether bytes are loaded in pairs.
        programs: for each KV head and split.
        splits: among which a sequence's positions are split.
        stages: tiles on their way and being multiplied.
        warps: of a program. Two share the 32 numbers of a vector in INT4: four would do the same work twice.
    """

    rows: int
    columns: int
    axis: int
    paired: bool
    programs: int
    splits: int
    stages: int
    warps: int


def attend_by_kernels(
    layer_idx: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    plan: BlockPlan,
    scaling: float | None = None,
    scores: Scores = ONLY_SCALED,
    *,
    stored: bool = False,
) -> torch.Tensor:
    """Store the new keys and values, then attend: query [N, heads, d]; key, value [N, kv_heads, d] -> [N, heads, d].

    ``stored``: they are stored already.

    Raises:
        KernelError: see there.
    """
    plan = plan.of_layer(layer_idx)
    layer = plan.storage.layers[layer_idx]
    with launching(query):
        if not stored:
            store_kv.store(layer, plan.write, key, value)
        return attend(layer, query, plan, scaling, scores)


def attend(
    layer: LayerStorage,
    query: torch.Tensor,
    plan: BlockPlan,
    scaling: float | None = None,
    scores: Scores = ONLY_SCALED,
    splits: int | None = None,
) -> torch.Tensor:
    """Let every new token attend to all positions up to its own. Sums are float32.

    Args:
        layer: the new keys and values are in it already.
        query: [N, heads, head_dim] of any strides.
        scaling: factor on the scores; None: 1 / sqrt(head_dim).
        scores: what else becomes of them.
        splits: programs among which a sequence's positions are split, a power of two. None: as many as
            fill the device.

    Returns:
        [N, heads, head_dim] in the query's dtype.
    """
    form, (keys, values, key_scales, value_scales) = parts(layer)
    (tokens, heads, dim), (sequences, height) = query.shape, plan.tables.shape
    tiling = _tiling(form, query, keys, plan, splits, scores.window)
    splits = tiling.splits
    integers = form == "int8" and tiling.axis == 0
    if tiling.paired:
        values = values.view(torch.int16)
        if not integers:
            keys = keys.view(torch.int16)
    kv_heads, groups = keys.shape[1], key_scales.shape[-1]
    key_width, width = keys.shape[-1], values.shape[-1]
    padded = max(16, triton.next_power_of_2(width))

    out = torch.empty(tokens, heads, dim, dtype=query.dtype, device=query.device)
    found = out
    if splits > 1:
        found = torch.empty(tokens, heads, splits, dim, dtype=torch.float32, device=query.device)
    maxima, sums = torch.empty(2, tokens, heads, splits, dtype=torch.float32, device=query.device)
    _attend_kernel[tiling.programs, kv_heads, splits](
        found,
        maxima,
        sums,
        query,
        keys,
        values,
        key_scales,
        value_scales,
        plan.tables,
        plan.starts,
        plan.lengths,
        query if scores.sinks is None else scores.sinks,
        scores.window or 0,
        (scores.softcap or 0.0) * LOG2_E,
        (dim**-0.5 if scaling is None else scaling) * LOG2_E,
        sequences,
        height,
        *query.stride(),
        *keys.stride()[:2],
        *values.stride()[:2],
        *key_scales.stride()[:2],
        FORMAT=form,
        DTYPE=multiplied_in(query.dtype),
        HEADS=heads,
        SHARED=heads // kv_heads,
        DIM=dim,
        INTEGERS=integers,
        KEY_PARTS=dim // key_width,
        KEY_WIDTH=key_width,
        KEY_PADDED=max(32 if integers else 16, triton.next_power_of_2(key_width)),
        PARTS=dim // width,
        WIDTH=width,
        PADDED=padded,
        GROUPS=groups,
        PADDED_GROUP=width // groups if groups > 1 else padded,
        BLOCK_SIZE=plan.block_size,
        P=tiling.axis,
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
        SPLITS=splits,
        ALONE=plan.longest_new == 1,
        WINDOWED=scores.window is not None,
        CAPPED=scores.softcap is not None,
        SINKS=scores.sinks is not None,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        **early(query.device),
    )
    if splits > 1:
        _combine_kernel[tokens, heads, triton.cdiv(dim, COMBINED)](
            out, found, maxima, sums, DIM=dim, PART=COMBINED, SPLITS=splits, num_warps=1, **early(query.device)
        )
    return out


def _tiling(
    form: str, query: torch.Tensor, keys: torch.Tensor, plan: BlockPlan, splits: int | None, window: int | None
) -> Tiling:
    """The tiling for a cache's format and a step's numbers. ``splits``: as many, if given."""
    (tokens, heads, dim), sequences, (_, kv_heads, width) = query.shape, len(plan.tables), keys.shape
    shared, exact, quantised = heads // kv_heads, query.dtype == torch.float32, form != "plain"
    most_rows, tile_bytes = (MOST_ROWS_FLOAT32, TILE_BYTES_FLOAT32) if exact else (MOST_ROWS, TILE_BYTES)
    wanted = max(shared, min(shared * plan.longest_new, most_rows))
    turned = quantised and not exact and _takes_few_columns(query.device)
    rows = max(FEWEST_COLUMNS if turned else 16, triton.next_power_of_2(wanted))
    few = rows <= 16
    axis = 0 if few and turned else 1
    # 32 such numbers are enough for tensor cores of two warps; a stride divisible by 16 tells Triton of alignment.
    paired = quantised and few and not exact and width >= 64 and width % 32 == 0
    if paired:
        tile_bytes *= 2
    itemsize = multiplied_in(query.dtype).primitive_bitwidth // 8
    columns = min(128, max(16, tile_bytes // (triton.next_power_of_2(dim) * itemsize)))
    # One tile per sequence, or as many as all tokens can need however they are divided among the sequences.
    tile = rows // shared
    programs = sequences if plan.longest_new <= tile else tokens // tile + sequences
    if splits is None:
        resident = RESIDENT[form] if few else RESIDENT_WIDE
        longest = plan.longest if window is None else min(plan.longest, window + tile)
        splits = _splits(programs * kv_heads, resident, longest, columns, query.device)
    warps = 2 if paired and form == "int4" and axis == 0 else 4
    return Tiling(rows, columns, axis, paired, programs, splits, STAGES[form] if few else 2, warps)


def _splits(programs: int, resident: int, longest: int, columns: int, device: torch.device) -> int:
    """Number of splits, a power of two: as many programs as the device runs at once, each with at least a tile of
    ``columns`` tokens.

    Captured or not, a short step is computed by the same kernels: with as many as the shortest captured one.
    """
    tiles = max(longest, SHORTEST_CONTEXT) // columns
    if tiles <= MOST_TILES:
        return 1
    wanted = min(resident * _processors(device) // programs, tiles, MOST_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1)


@functools.cache
def _takes_few_columns(device: torch.device) -> bool:
    """Return whether products of few columns are worth it.

    AMD's matrix cores take no fewer than 16. For compute capability 10 and 11,
    whose tensor cores have a memory of their own, Triton 3.9 makes 2.2 times the instructions (INT8).
    """
    if device.type != "cuda":
        return True
    return not torch.version.hip and torch.cuda.get_device_capability(device)[0] not in (10, 11)


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


# A kernel is compiled again for every kind of argument, but not for a table that has grown, nor for where in the
# plan's one tensor a part happens to begin.
@triton.jit(
    do_not_specialize=("sequences", "height", "window"), do_not_specialize_on_alignment=("tables", "starts", "lengths")
)
def _attend_kernel(
    found,  # [N, heads, head_dim], or one for each split [N, heads, splits, head_dim]
    maxima,  # [N, heads, splits] float32, as are the sums
    sums,
    query,  # [N, heads, head_dim] of any strides
    keys,  # [slots, kv_heads, stored numbers of a vector] in the cache's dtype, or int16: pairs of its bytes
    values,  # likewise, not always in the same
    key_scales,  # [slots, kv_heads, groups]: INT8's float32, one group; INT4's bfloat16; plain: never read
    value_scales,
    tables,  # [sequences, height] int32 or int64, as are the two that follow; see ``BlockPlan``
    starts,  # [sequences + 1]
    lengths,  # [sequences]
    sinks,  # [heads], or never read
    window,  # positions that a token sees, its own included
    softcap,  # of scores, to base 2
    scaling,  # of scores, to base 2
    sequences,
    height,
    query_token,
    query_head,
    query_dim,
    keys_slot,
    keys_head,
    values_slot,
    values_head,
    scales_slot,
    scales_head,
    FORMAT: tl.constexpr,
    DTYPE: tl.constexpr,  # of the products
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    DIM: tl.constexpr,
    INTEGERS: tl.constexpr,  # keys are multiplied as they are stored
    KEY_PARTS: tl.constexpr,  # dimensions in a key's stored number
    KEY_WIDTH: tl.constexpr,  # of a stored key, in such numbers
    KEY_PADDED: tl.constexpr,
    PARTS: tl.constexpr,  # the same of values
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    GROUPS: tl.constexpr,  # of an INT4 vector, each with a scale
    PADDED_GROUP: tl.constexpr,  # stored numbers in a group
    BLOCK_SIZE: tl.constexpr,
    P: tl.constexpr,  # axis of the positions in the scores, [COLUMNS, ROWS] if 0
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr,
    ALONE: tl.constexpr,  # no sequence has more than one new token
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    EARLY: tl.constexpr,
):
    let_next_begin(EARLY)
    kv_head, split = tl.program_id(1), tl.program_id(2)
    TOKENS: tl.constexpr = ROWS // SHARED
    sequence, tile = _tile(starts, sequences, TOKENS)
    first = tl.load(starts + sequence).to(tl.int32)
    new = tl.load(starts + sequence + 1).to(tl.int32) - first
    length = tl.load(lengths + sequence).to(tl.int32)
    if tile * TOKENS >= new:
        return

    # This split's share of what the tile's last token sees, or with a window any of them.
    seen, lowest = tl.minimum(length, length - new + (tile + 1) * TOKENS), 0
    if WINDOWED:
        lowest = tl.maximum(0, length - new + tile * TOKENS + 1 - window)
    share = tl.cdiv(tl.cdiv(seen - lowest, SPLITS), COLUMNS) * COLUMNS
    begin = lowest + split * share
    end = tl.minimum(begin + share, seen)
    i, j = tl.arange(0, KEY_PADDED), tl.arange(0, PADDED)  # numbers stored for a key, and for a value
    wait_for_previous(EARLY)  # what was read so far is the plan, copied to the device before the step's first kernel

    # The tile's rows: token by token, the heads of each side by side, so that all share the keys that are loaded.
    row = tl.arange(0, ROWS)
    token = tile * TOKENS + row // SHARED
    head = kv_head * SHARED + row % SHARED
    real = (row < TOKENS * SHARED) & (token < new)
    position = length - new + token
    row_at = (first + token).to(tl.int64)
    q_at = query + row_at * query_token + head.to(tl.int64) * query_head

    # A stored number holds several dimensions that follow each other, the first in its lowest bits.
    q, factor = (), scaling
    if INTEGERS:
        x = tl.load(q_at[:, None] + i[None, :] * query_dim, mask=real[:, None] & (i < DIM)[None, :], other=0.0)
        x, unit = halves(x.to(tl.float32))
        q += (tl.trans(x),)
        factor = scaling * _of_rows(unit, P)
    else:
        q_at = _of_rows(q_at, P) + _of_columns(KEY_PARTS * i, P) * query_dim
        q_mask = _of_rows(real, P) & _of_columns(i < KEY_WIDTH, P)
        for part in tl.static_range(KEY_PARTS):
            q += (tl.load(q_at + part * query_dim, mask=q_mask, other=0.0).to(DTYPE),)

    acc = ()
    for _ in tl.static_range(PARTS):
        acc += (tl.zeros([PADDED, ROWS] if P == 0 else [ROWS, PADDED], tl.float32),)
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    if SINKS:
        sink = tl.load(sinks + head, mask=real & (row * 0 + split == 0), other=float("-inf")).to(tl.float32) * TO_BASE_2
        maximum = sink
    # Added up at the end: in the loop, warps would wait for each other.
    weights = tl.zeros([COLUMNS, ROWS] if P == 0 else [ROWS, COLUMNS], tl.float32)
    for start in range(begin, end, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        inside = column < end
        # Where no token is, the last one is loaded again: stale slots may hold NaN, and 0 x NaN is NaN. A mask instead
        # would take instructions for every vector.
        known = tl.minimum(column, end - 1)
        block = tl.load(tables + sequence * height + known // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE
        slot = block + known % BLOCK_SIZE
        # As the products take them: [COLUMNS, numbers] of keys, and of values, but [numbers, COLUMNS] if P is 0.
        k_at = keys + (slot * keys_slot + kv_head * keys_head)[:, None] + i[None, :]
        v_at = values + tl.expand_dims(slot * values_slot + kv_head * values_head, P) + tl.expand_dims(j, 1 - P)
        # Scales are masked: through a minimum, Triton does not see that they lie side by side.
        scales = (block + column % BLOCK_SIZE) * scales_slot + kv_head * scales_head

        k = tl.load(k_at) if KEY_PADDED == KEY_WIDTH else tl.load(k_at, mask=(i < KEY_WIDTH)[None, :], other=0)
        if INTEGERS:
            high, low = tl.split(tl.reshape(tl.dot(k, q[0], out_dtype=tl.int32), [COLUMNS, ROWS, 2]))
            score = (128 * high + low).to(tl.float32) * factor
        else:
            k_scale = None
            if FORMAT == "int4":
                k_scale = group_scales(key_scales, scales, inside, GROUPS, KEY_PADDED, PADDED_GROUP)
            score = tl.zeros_like(weights)
            for part in tl.static_range(KEY_PARTS):
                k_part = part_of(k, part, k_scale, FORMAT, DTYPE)
                if P == 0:
                    score = tl.dot(k_part, q[part], score, input_precision="ieee")
                else:
                    score = tl.dot(q[part], tl.trans(k_part), score, input_precision="ieee")
            score *= factor
        if FORMAT == "int8":
            score *= _of_columns(tl.load(key_scales + scales, mask=inside, other=0.0), P)
        if CAPPED:
            score = softcap * (1 - 2 / (tl.exp2(score * (2 * TO_BASE_2) / softcap) + 1))  # tanh
        visible = _of_columns(inside, P)
        if not ALONE:  # a tile's only token sees all that the tile goes over
            visible &= _of_columns(column, P) <= _of_rows(position, P)
            if WINDOWED:
                visible &= _of_columns(column, P) > _of_rows(position, P) - window
        score = tl.where(visible, score, float("-inf"))

        newest = tl.maximum(maximum, tl.max(score, P))
        base = tl.where(newest == float("-inf"), 0.0, newest)  # nothing seen yet: no inf - inf
        weight = tl.exp2(score - _of_rows(base, P))
        shrink = _of_rows(tl.exp2(maximum - base), P)
        maximum = newest
        weights = weights * shrink + weight

        v = tl.load(v_at) if PADDED == WIDTH else tl.load(v_at, mask=tl.expand_dims(j < WIDTH, 1 - P), other=0)
        v_scale = None
        if FORMAT == "int4":
            v_scale = group_scales(value_scales, scales, inside, GROUPS, PADDED, PADDED_GROUP)
            if P == 0:
                v_scale = tl.trans(v_scale)
        elif FORMAT == "int8":
            vector_scale = tl.load(value_scales + scales, mask=inside, other=0.0)
            if tl.float16 == DTYPE:  # a small weight times a small scale would underflow
                v_scale = tl.expand_dims(vector_scale, P)
            else:
                weight *= _of_columns(vector_scale, P)
        grown = ()
        for part in tl.static_range(PARTS):
            v_part = part_of(v, part, v_scale, FORMAT, DTYPE)
            if P == 0:
                grown += (tl.dot(v_part, weight.to(DTYPE), acc[part] * shrink, input_precision="ieee"),)
            else:
                grown += (tl.dot(weight.to(DTYPE), v_part, acc[part] * shrink, input_precision="ieee"),)
        acc = grown

    total = tl.sum(weights, P)
    if SINKS:
        total += tl.exp2(sink - tl.maximum(maximum, -1e38))  # no inf - inf
    place = (row_at * HEADS + head) * SPLITS + split
    if SPLITS > 1:
        tl.store(maxima + place, maximum, mask=real)
        tl.store(sums + place, total, mask=real)
    at = found + _of_rows(place, P) * DIM + _of_columns(PARTS * j, P)
    for part in tl.static_range(PARTS):
        mean = acc[part] / _of_rows(total, P) if SPLITS == 1 else acc[part]
        tl.store(at + part, mean.to(found.dtype.element_ty), mask=_of_rows(real, P) & _of_columns(j < WIDTH, P))


@triton.jit
def _of_rows(x, P: tl.constexpr):
    """A number of every row, [ROWS], to be combined with what has rows and another axis."""
    return tl.expand_dims(x, P)


@triton.jit
def _of_columns(x, P: tl.constexpr):
    """The same of every number along that other axis: of every position in the scores."""
    return tl.expand_dims(x, 1 - P)


@triton.jit
def _tile(starts, sequences, TOKENS: tl.constexpr):
    """This program's sequence, and which of its tiles.

    Sequence s has the programs from starts[s] // TOKENS + s on, at most one of them too many. A program finds its
    sequence by bisection: no list of tiles has to be passed (as in vLLM's Triton attention). Where there are as many
    programs as sequences, each has one tile.
    """
    program = tl.program_id(0)
    several = tl.num_programs(0) > sequences
    sequence = tl.where(several, 0, program)
    above = tl.where(several, sequences, program + 1)
    while above - sequence > 1:
        middle = (sequence + above) // 2
        mine = tl.load(starts + middle).to(tl.int32) // TOKENS + middle <= program
        sequence, above = tl.where(mine, middle, sequence), tl.where(mine, above, middle)
    first = tl.load(starts + sequence).to(tl.int32) // TOKENS + sequence
    return sequence, tl.where(several, program - first, 0)


@triton.jit
def _combine_kernel(
    out,  # [N, heads, head_dim]
    found,  # [N, heads, splits, head_dim] float32
    maxima,  # [N, heads, splits] float32, as are the sums
    sums,
    DIM: tl.constexpr,
    PART: tl.constexpr,  # of them, numbers for a program
    SPLITS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Combine the splits' sums for one token and query head, each rescaled to the largest score of all."""
    let_next_begin(EARLY)
    wait_for_previous(EARLY)
    row = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    split, i = tl.arange(0, SPLITS), tl.program_id(2) * PART + tl.arange(0, PART)
    maximum = tl.load(maxima + row * SPLITS + split)
    weight = tl.exp2(maximum - tl.max(maximum, 0))
    total = tl.sum(weight * tl.load(sums + row * SPLITS + split), 0)
    parts = tl.load(
        found + (row * SPLITS + split)[:, None] * DIM + i[None, :], mask=(i < DIM)[None, :] & (split >= 0)[:, None]
    )
    mean = tl.sum(weight[:, None] * parts, 0) / total
    tl.store(out + row * DIM + i, mean.to(out.dtype.element_ty), mask=i < DIM)
