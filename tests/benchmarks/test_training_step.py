"""benchmarks/training_step.py compares like with like: every way of computing the SGA step has the same losses."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def arms(benchmark):
    return benchmark("training_arms")


@pytest.fixture
def setting(arms, tiny_llama):
    return arms.Setting(
        pairs=3, prompt=20, completion=8, dropout=0.0, style="instructions", dtype="float32", model=str(tiny_llama)
    )


def losses(step):
    out = []
    for seed in range(3):
        torch.manual_seed(seed)  # the head's own dropout
        out.append(step())
    return torch.tensor(out)


def test_every_way_of_the_sga_step_has_the_same_losses(arms, setting):
    wanted = losses(arms.ARMS["sga"](setting))
    assert len(set(wanted.tolist())) == 3 and (wanted > 1).all()
    for name in ("kv_cache", "separate", "peft_lora", "float32_adapter"):
        torch.testing.assert_close(losses(arms.ARMS[name](setting)), wanted, atol=0, rtol=1e-4, msg=name)


def test_trl_trains_on_the_same_pairs(arms, setting):
    alone, labels, released = (losses(arms.ARMS[name](setting)) for name in ("trl", "trl_labels", "released"))
    torch.testing.assert_close(alone, labels, atol=1e-5, rtol=1e-5)
    assert abs(alone[0] - 0.6931) < 1e-4 and (released > alone + 1).all()  # a new adapter has no margin yet


def test_the_text_for_ten_objectives_can_be_kept_that_of_two(arms, setting, tiny_llama):
    from dataclasses import replace

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)

    def length(**settings):
        example = arms.examples_of(replace(setting, **settings), tokenizer)[0]
        return len(example.target), len(example.suffix(example.answers[0].profile))

    two, ten, same = length(objectives=2), length(objectives=10), length(objectives=10, rendered=2)
    assert two[0] == 2 and ten[0] == same[0] == 10
    assert same[1] == two[1] < ten[1]
