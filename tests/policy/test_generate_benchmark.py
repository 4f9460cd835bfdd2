"""benchmarks/generate.py runs, and its arms do the same work: they write the same tokens."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def benchmark():
    folder = Path(__file__).parents[2] / "benchmarks"
    path = folder / "generate.py"
    spec = importlib.util.spec_from_file_location("generate_benchmark", path)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        spec.loader.exec_module(module)
    return module


@pytest.fixture
def policy(benchmark, tiny_llama, make_policy):
    made = make_policy(tiny_llama)
    made.renderer = benchmark.Endless(made.tokenizer, made.objectives)
    made.causal.generation_config.eos_token_id = None
    return made


def test_the_arms_write_the_same_tokens(benchmark, policy):
    prompt = benchmark.prompt_of(policy, 60)
    assert 40 < len(benchmark.prefix_of(policy, prompt)) <= 60
    ids = benchmark.rendered(policy, prompt)
    guided = policy.generate([prompt], max_new_tokens=8)[0]
    assert guided.tokens == 8
    assert benchmark.plain(policy, [ids], 8) == [guided.text]
    assert benchmark.transformers_generate(policy, ids, 8) == guided.text


def test_the_smallest_sizes_are_measured_too(benchmark, policy):
    out = benchmark.measure(policy, 1, 1, 1, 1)
    assert out["new_tokens"] == 1 and out["tokens_per_second_batch"] > 0


def test_the_figures_are_json(benchmark, policy):
    out = benchmark.measure(policy, 60, 4, 100, 1)
    ratios = [value for name, value in out.items() if "ratio" in name]
    assert len(ratios) == 4 and all(value > 0 for value in ratios)
    assert json.loads(json.dumps(out)) == out and out["new_tokens"] == 4
