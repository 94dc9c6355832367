"""The step in C for registers of every width, with and without bfloat16 products: the compiler emulates what this
processor lacks, except for the latter.
"""

from __future__ import annotations

import math
import os
import platform
import subprocess
from pathlib import Path

import pytest
import torch

from lab import SamplingParams
from lab.backends.cpu import build
from lab.backends.cpu.native_model import NativeModel
from lab.backends.cpu.native_sampler import sample
from lab.backends.interface import NewTokens
from lab.backends.torch.sampler import draw
from lab.util.machine_info import instructions
from tests.cpu.test_heads import CASES, DRAWN, assert_same_drafts, drafts_of_both
from tests.cpu.test_native import llama, logits_of_both
from tests.cpu.test_rejection import NOT_FINITE, assert_verified_as_by_torch, random_round
from tests.pairwise import parametrize_pairwise

X86 = platform.machine().lower() in ("x86_64", "amd64")
BUILDS = {
    "128 bits": ("-DVECTOR_BITS=128", *["-mno-avx"] * X86),
    "256 bits": ("-DVECTOR_BITS=256", *["-mno-avx512f"] * X86),
    "512 bits": ("-DVECTOR_BITS=512", *["-mno-avx512bf16"] * X86),
    "512 bits, bfloat16": ("-DVECTOR_BITS=512",),
}


@pytest.fixture(scope="module", params=BUILDS)
def flags(request):
    """Flags of a build of the step, which is the one in use in the meantime."""
    if "bfloat16" in request.param and "avx512_bf16" not in instructions().split():
        pytest.skip("this processor has no instructions for products of bfloat16")
    flags = ("-O1", *(flag for flag in build.FLAGS if flag != "-O3"), "-Wno-psabi", *BUILDS[request.param])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", flags)
        build.library.cache_clear()
        yield flags
    build.library.cache_clear()


@pytest.fixture(scope="module")
def sanitizers(tmp_path_factory):
    """Flags for AddressSanitizer and UndefinedBehaviorSanitizer."""
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    source = tmp_path_factory.mktemp("probe") / "probe.c"
    source.write_text("int main(void) { return 0; }")
    try:
        subprocess.run([*build._compiler(), *flags, source, "-o", source.with_suffix("")], check=True)
        subprocess.run([source.with_suffix("")], check=True)
    except (OSError, subprocess.CalledProcessError, build.BuildError) as error:
        pytest.skip(f"no program with sanitizers can be built here ({error})")
    return flags


@pytest.mark.slow
def test_every_index_is_inside_its_array(flags, sanitizers, tmp_path):
    """Rows with and without a remainder of lanes, of numbers that are finite, infinite or NaN."""
    program, source = tmp_path / "bounds", Path(__file__).with_name("bounds.c")
    flags = [flag for flag in flags if flag not in ("-O1", "-shared", "-fPIC")]
    command = [*build._compiler(), "-O0", "-g1", *flags, *sanitizers, f"-I{build.SOURCE.parent}", "-o", program, source]
    subprocess.run([*command, "-lm"], check=True)
    run = subprocess.run([program], capture_output=True, text=True, env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"})
    assert run.returncode == 0, run.stdout + run.stderr
    bits = next(flag for flag in flags if "VECTOR_BITS" in flag).partition("=")[2]
    assert run.stdout.startswith(f"{int(bits) // 32} lanes")


@pytest.mark.slow
@pytest.mark.usefixtures("flags")
@parametrize_pairwise(vocabulary=[1, 16, 40, 4096], where=[0, 0.5, None], odd=[*NOT_FINITE, -math.inf])
def test_non_finite_logits_show_in_their_row_of_p_and_give_a_token_of_the_vocabulary(vocabulary, where, odd):
    """``where``: all of the row if None."""
    logits = torch.zeros(2, vocabulary)
    where = slice(None) if where is None else int(where * vocabulary)
    if odd == -math.inf:
        logits[0, where] = odd
    else:
        logits.view(torch.int32)[0, where] = odd
    for sampling in ([SamplingParams()] * 2, [SamplingParams(), SamplingParams(temperature=0.8, top_k=3)]):
        for broken in (0, 1):
            p, tokens = sample(logits.roll(broken, 0), sampling, torch.zeros(2, dtype=torch.float64))
            assert p[broken].isnan().any() or odd == -math.inf
            assert p[1 - broken].isfinite().all()
            assert 0 <= tokens.min() <= tokens.max() < vocabulary


@pytest.mark.slow
@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize("kv_format", ["auto", "int4"])
@torch.inference_mode()
def test_every_build_gives_the_logits_of_the_reference(kv_format):
    (expected, _), (actual, _) = logits_of_both(llama(), kv_format, [(37, 1), (0, 3), (20, 17), (8, 1)])
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize(("kind", "name"), CASES)
@torch.inference_mode()
def test_every_build_drafts_with_a_head_as_torch(kind, name):
    assert_same_drafts(drafts_of_both(kind, name, (DRAWN,) * 3))


@pytest.mark.parametrize("rounded", [False, True])
@torch.inference_mode()
def test_every_build_gives_a_token_the_same_bits_in_a_tile_of_any_size(flags, rounded):
    native, text = NativeModel(llama(), rounded=rounded), torch.arange(40, 64)
    assert native.rounded == (rounded and flags[-1] == "-DVECTOR_BITS=512")
    rows = [native.step([NewTokens(text[:count], 0, None, count)], 3, None) for count in range(1, 25)]
    for count, found in enumerate(rows, start=1):
        assert torch.equal(found, rows[-1][:count])


@pytest.mark.usefixtures("flags")
@pytest.mark.parametrize("vocabulary", [7, 64, 101])
def test_every_build_draws_and_verifies_as_torch_to_the_last_bit(vocabulary):
    sampling = SamplingParams(temperature=0.9, top_k=vocabulary // 2, top_p=0.9)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        logits, u, round = random_round(generator, 4, vocabulary, sampling)
        assert torch.equal(draw(round.draft.q, u[:4, 0]), round.draft.token_ids)
        assert_verified_as_by_torch(logits, [round])
