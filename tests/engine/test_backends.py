"""Each request chooses what computes its steps: the engine's best backend, or torch."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from lab import ConfigError, EngineConfig, Run, SamplingParams, load_engine
from lab.backends.cpu.cpu_arithmetic import CpuArithmetic
from lab.backends.cpu.native_model import NativeModel, native_step
from lab.backends.torch.arithmetic import TorchArithmetic
from lab.engine import processor as intake
from lab.measure.difference import first_differences, read_again
from lab.models.language_model import LanguageModel
from lab.trace.events import StepTimed

SAMPLING = SamplingParams(max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
PROMPT = "Once upon a time there was a poor miller"


@pytest.fixture(scope="module")
def engine():
    lab = load_engine(device="cpu")
    if native_step(lab.target).model is None:
        pytest.skip("no C compiler: torch computes all")
    return lab


def test_a_request_may_ask_for_torch_and_its_run_records_it(engine, tmp_path):
    configs = {"c": EngineConfig(speculative="draft"), "torch": EngineConfig(speculative="draft", kernels="reference")}
    runs = {name: engine.generate(PROMPT, config, SAMPLING) for name, config in configs.items()}
    assert runs["torch"].started.dtype == "float32"
    assert runs["c"].started.dtype == engine.dtype
    assert runs["torch"].metrics.tokens_per_second > 0
    assert native_step(engine.target).model is not None  # the next request can still use it
    for name, run in runs.items():
        run.save(tmp_path / f"{name}.json")
        assert Run.load(tmp_path / f"{name}.json").config == configs[name]
        place = len(run.token_ids) - 1
        p = [p for event in run.events if event.kind == "committed" for p in event.probabilities][place]
        again = read_again(engine, run, [place])[place]
        assert again[run.token_ids[place]].item() == pytest.approx(p, abs=1e-5)  # with the backend of the run
    for found in first_differences(engine, runs).values():
        assert found.a.margin == pytest.approx(found.b.margin, abs=0.05)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_a_run_is_measured_against_the_products_that_compute_it(engine, monkeypatch, kernels):
    asked, config = [], EngineConfig(kernels=kernels)
    monkeypatch.setattr(intake, "device_limits", asked.append)
    begin = engine.prepare(PROMPT, config, SAMPLING)
    assert asked  # before the run's clock starts, since measuring takes a while
    assert begin()[0].result().reason == "length"
    kind = CpuArithmetic if kernels == "auto" else TorchArithmetic
    assert len(set(asked)) == 1
    assert isinstance(asked[0], kind)
    assert 0 < asked[0].weight_bytes <= engine.target.weight_bytes


@pytest.mark.parametrize("cached", [True, False], ids=["a cache", "no cache"])
def test_a_step_whose_attention_is_torchs_reads_the_weights_that_torch_does(engine, monkeypatch, cached):
    """All of them in float32. Without a cache every step is such a one; with one, those that read a prompt."""
    asked, config = [], EngineConfig(kv_cache=cached)
    monkeypatch.setattr(intake, "device_limits", asked.append)
    c, torchs, math = (
        engine.generate(PROMPT, some, replace(SAMPLING, max_tokens=4))
        for some in (config, replace(config, kernels="reference"), replace(config, prefill_attention="math"))
    )
    in_c, by_torch, read = (
        [event.verify_bytes for event in run.events if isinstance(event, StepTimed)] for run in (c, torchs, math)
    )
    assert all(fewer < more for fewer, more in zip(in_c, by_torch, strict=True))
    assert read == ([by_torch[0], *in_c[1:]] if cached else by_torch)
    assert math.started.dtype == (c if cached else torchs).started.dtype
    assert isinstance(asked[-1], CpuArithmetic if cached else TorchArithmetic)


@pytest.mark.parametrize(("cached", "in_c"), [(True, [1, 1, 1]), (False, [])], ids=["a cache", "no cache"])
def test_a_step_whose_attention_is_torchs_is_not_computed_in_c(engine, monkeypatch, cached, in_c):
    step, computed = NativeModel.step, []

    def spy(model, batch, *rest):
        computed.extend(len(new.token_ids) for new in batch)
        return step(model, batch, *rest)

    monkeypatch.setattr(NativeModel, "step", spy)
    config = EngineConfig(kv_cache=cached, prefill_attention="math")
    engine.generate(PROMPT, config, replace(SAMPLING, max_tokens=4))
    assert computed == in_c


def test_torch_compile_is_refused_where_a_step_in_c_computes(engine, monkeypatch):
    monkeypatch.setattr(LanguageModel, "compile", lambda model: pytest.fail("half a minute for nothing"))
    asked = EngineConfig(torch_compile=True)
    for refused in (lambda: engine.generate(PROMPT, asked, SAMPLING), lambda: engine.models(asked)):
        with pytest.raises(ConfigError, match=r"a step in C computes them. Set kernels='reference' as well"):
            refused()


def test_other_requests_run_while_layers_are_being_compiled(engine, monkeypatch):
    going, compiled = threading.Event(), threading.Event()

    def compile_slowly(model, backend="inductor"):
        going.set()
        assert compiled.wait(60)

    monkeypatch.setattr(LanguageModel, "compile", compile_slowly)
    asked = EngineConfig(kernels="reference", torch_compile=True)
    compiler = threading.Thread(target=engine.models, args=(asked,))
    compiler.start()
    assert going.wait(30)
    for kernels in ("auto", "reference"):
        assert engine.generate(PROMPT, EngineConfig(kernels=kernels), SAMPLING).token_ids
    assert compiler.is_alive()
    compiled.set()
    compiler.join(30)
    assert engine.models(asked)[0].model is not engine.target.model
