"""`train(start=POLICY)`: training that goes on with a policy's adapter, head, objectives, scales and settings."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from paretune.errors import InputError
from paretune.methods import train
from paretune.policy import load_policy


def adapter(folder):
    return load_file(str(folder / "adapter" / "adapter_model.safetensors"))


def test_training_goes_on_where_it_ended(quick, scored_rows, tmp_path):
    first = quick("first")
    out = tmp_path / "more"
    train("sga", scored_rows, None, out, start=first, settings=["lr=1e-9", "lr_head=1e-9", "head_epochs=0"])
    one, two = adapter(first), adapter(out)
    assert one.keys() == two.keys()
    for name in one:  # a step this small moves nothing: the adapter is the first one's, not a fresh one
        torch.testing.assert_close(one[name], two[name], atol=1e-6, rtol=0)
    before, after = (json.loads((each / "policy.json").read_text()) for each in (first, out))
    for key in ("objectives", "renderer", "weights", "base_fingerprint", "method"):
        assert before[key] == after[key]
    assert set(before["train_prompts"]) <= set(after["train_prompts"])
    prompt = ["Tell me a joke."]
    assert load_policy(first).loglik(prompt, ["Ha."], [None]) == pytest.approx(
        load_policy(out).loglik(prompt, ["Ha."], [None]), abs=1e-3
    )


def test_training_on_moves_the_adapter_and_the_head(quick, scored_rows, tmp_path):
    first = quick("first")
    out = tmp_path / "more"
    train("sga", scored_rows, None, out, start=first)
    one, two = adapter(first), adapter(out)
    assert max((one[name] - two[name]).abs().max() for name in one) > 1e-4
    assert (
        json.loads((out / "policy.json").read_text())["config"]
        == json.loads((first / "policy.json").read_text())["config"]
    )


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["lora_r=8"], "lora_r=4, which cannot change; found 8"),
        (["style=scores"], "style=instructions, which cannot change; found scores"),
        (["scale=zscore"], "scale=quantile, which cannot change; found zscore"),
        (["head.width=32"], "which cannot change; found others"),
        (["preset=paper"], "training goes on with preset 'robust'"),
    ],
)
def test_what_a_policy_has_for_good(quick, scored_rows, tmp_path, settings, said):
    first = quick("first")
    with pytest.raises(InputError, match=said):
        train("sga", scored_rows, None, tmp_path / "more", start=first, settings=settings)
    assert not (tmp_path / "more").exists()


def test_another_method_or_no_model_is_told(quick, scored_rows, tiny_llama, tmp_path):
    first = quick("first", method="dpo")
    with pytest.raises(InputError, match="was trained by 'dpo', so it cannot go on with 'sft'"):
        train("sft", scored_rows, None, tmp_path / "more", start=first)
    with pytest.raises(InputError, match="the policy's own objectives"):
        train("dpo", scored_rows, None, tmp_path / "more", start=first, objectives=["brevity"])
    for model, start in ((None, None), (str(tiny_llama), first)):
        with pytest.raises(InputError, match="one of the two"):
            train("dpo", scored_rows, model, tmp_path / "more", start=start)
