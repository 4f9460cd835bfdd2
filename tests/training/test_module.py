"""The module that trains: what LoRA touches, what the head's gradient reaches, and what the reference is."""

from __future__ import annotations

import peft
import pytest
import torch
from peft.tuners.lora.layer import Linear as PeftLinear
from torch import nn
from transformers.pytorch_utils import Conv1D

from paretune.errors import InputError
from paretune.policy.lora import FusedLoraLinear
from paretune.policy.packed import Branch, Packed, collate, forward

ROWS = [
    Packed([5, 9, 11, 300, 42], [Branch([7, 8], [20, 21, 22, 2]), Branch([7, 90, 8], [33, 2])]),
    Packed([17, 18], [Branch([3], [100, 101])]),
]


IDS = torch.tensor([[5, 9, 11, 300, 42, 7], [17, 18, 19, 20, 21, 22]])


def batch():
    return collate(ROWS, 0)


def adapted(module):
    names = [name.partition(".lora_A") for name, _ in module.peft.named_parameters() if "lora_A" in name]
    return {before.removeprefix("base_model.model.") for before, _, _ in names}


def test_lora_is_on_every_linear_layer_but_the_lm_head(tiny_model, make_module):
    module = make_module(tiny_model)
    linear = {
        name.replace(".base_layer", "")
        for name, each in module.causal.named_modules()
        if isinstance(each, (nn.Linear, Conv1D)) and "lora_" not in name and "lm_head" not in name
    }
    assert adapted(module) == linear
    assert len(linear) == (8 if tiny_model.name == "gpt2" else 14)


def test_only_adapter_and_head_are_trained(tiny_model, make_module):
    module = make_module(tiny_model)
    trained = {name for name, each in module.named_parameters() if each.requires_grad}
    assert trained and all("lora_" in name or name.startswith("head.") for name in trained)


def test_lora_layers_takes_the_upper_layers(tiny_model, make_module):
    all_layers, upper = adapted(make_module(tiny_model)), adapted(make_module(tiny_model, lora_layers=1))
    assert upper == {name for name in all_layers if ".1." in name} and len(upper) == len(all_layers) // 2
    assert adapted(make_module(tiny_model, lora_layers=2)) == all_layers
    with pytest.raises(InputError, match="the model has 2 layers, found lora_layers=3"):
        make_module(tiny_model, lora_layers=3)


def test_the_adapter_is_seeded(tiny_llama, make_module):
    def start(seed):
        torch.manual_seed(seed + 100)  # global state must not matter
        module = make_module(tiny_llama, seed=seed)
        return torch.cat([each.flatten() for name, each in module.peft.named_parameters() if "lora_A" in name])

    assert torch.equal(start(0), start(0)) and not torch.equal(start(0), start(1))


def test_the_bases_own_dropout_is_off(tiny_gpt2, make_module):
    module = make_module(tiny_gpt2).train()  # this GPT-2's config says dropout 0.1 in three places
    assert torch.equal(module(batch()).logp, module(batch()).logp)
    module = make_module(tiny_gpt2, lora_dropout=0.3).train()
    assert not torch.equal(module(batch()).logp, module(batch()).logp)


def test_the_reference_is_the_base_model(tiny_model, make_module):
    from transformers import AutoModelForCausalLM

    module = make_module(tiny_model, lora_dropout=0.5).train()
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64).eval()
    found = module.reference_logp(batch())
    torch.testing.assert_close(found, forward(base, batch()).logp, atol=1e-9, rtol=0)
    assert not found.requires_grad and module.training and module.peft.training
    assert (module.eval()(batch()).logp - found).abs().max() > 0.01


def test_the_head_reads_the_prompt_with_the_adapter_on(tiny_model, make_module):
    module = make_module(tiny_model).eval()
    found = module(batch()).predicted
    for row, predicted in zip(ROWS, found, strict=True):
        hidden = module.causal(torch.tensor([row.prefix]), output_hidden_states=True).hidden_states[-1][:, -1]
        torch.testing.assert_close(predicted, module.head(hidden)[0], atol=1e-6, rtol=0)


def test_without_a_head_nothing_is_predicted(tiny_llama, make_module):
    assert make_module(tiny_llama, head=False)(batch()).predicted is None


def gradients(module, of):
    """Gradients of the backbone's adapter and of the head, of a scalar of the outputs."""
    module.zero_grad()
    of(module(batch())).backward()
    adapter = [each.grad for name, each in module.peft.named_parameters() if "lora_" in name]
    head = torch.cat([each.grad.flatten() for each in module.head.parameters()])
    return (torch.cat([each.flatten() for each in adapter]) if adapter[0] is not None else None), head


@pytest.mark.parametrize("scale", [0.0, 0.25, 1.0])
def test_the_heads_gradient_reaches_the_backbone_times_the_scale(tiny_llama, make_module, scale):
    whole, head = gradients(make_module(tiny_llama), lambda out: out.predicted.sum() + 0 * out.logp.sum())
    found, own = gradients(make_module(tiny_llama, scale=scale), lambda out: out.predicted.sum() + 0 * out.logp.sum())
    torch.testing.assert_close(found, whole * scale, atol=1e-7, rtol=1e-4)
    torch.testing.assert_close(own, head)  # the head itself always learns in full
    assert whole.abs().max() > 1e-3


def test_the_scale_leaves_the_other_losses_alone(tiny_llama, make_module):
    one, _ = gradients(make_module(tiny_llama), lambda out: out.logp.sum() + 0 * out.predicted.sum())
    two, _ = gradients(make_module(tiny_llama, scale=0.0), lambda out: out.logp.sum() + 0 * out.predicted.sum())
    torch.testing.assert_close(one, two)


def test_gradient_checkpointing_changes_no_number(tiny_model, make_module):
    plain, saving = make_module(tiny_model), make_module(tiny_model, gradient_checkpointing=True)
    saving.train()
    assert saving.causal.is_gradient_checkpointing
    one = gradients(plain.train(), lambda out: out.logp.sum() + out.predicted.sum())
    two = gradients(saving, lambda out: out.logp.sum() + out.predicted.sum())
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-9)


# --- fused LoRA layers ---


def test_only_plain_layers_change_class(tiny_gpt2, tiny_llama, make_module):
    def kinds(module):
        return {type(each) for each in module.modules() if isinstance(each, PeftLinear)}

    assert kinds(make_module(tiny_llama)) == {FusedLoraLinear}
    gpt2 = make_module(tiny_gpt2)  # its Conv1D layers hold their weights transposed
    assert all(each._plain(torch.zeros(1, 32)) is None for each in gpt2.modules() if isinstance(each, PeftLinear))


def test_the_adapter_is_a_plain_peft_adapter(tiny_llama, make_module, tmp_path):
    from transformers import AutoModelForCausalLM

    module = make_module(tiny_llama).eval()

    def base():
        return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float64).eval()

    with torch.no_grad():
        wanted = module.causal(IDS).logits
        module.peft.save_pretrained(tmp_path)
        loaded = peft.PeftModel.from_pretrained(base(), tmp_path, autocast_adapter_dtype=False).eval()
        assert not any(isinstance(each, FusedLoraLinear) for each in loaded.modules())
        torch.testing.assert_close(loaded(IDS).logits, wanted, atol=1e-6, rtol=1e-6)
        with module.peft.disable_adapter():
            torch.testing.assert_close(module.causal(IDS).logits, base()(IDS).logits)
        torch.testing.assert_close(module.causal(IDS).logits, wanted)
        merged = module.peft.merge_and_unload()
        torch.testing.assert_close(merged(IDS).logits, wanted, atol=1e-6, rtol=1e-6)


def test_checkpointing_draws_the_same_dropout_again(tiny_llama, make_module):
    rows = [Packed([5, 9, 11], [Branch([7], [20, 21]), Branch([7], [30, 31, 2])])]

    def gradients(checkpointing):
        module = make_module(tiny_llama, lora_dropout=0.2, gradient_checkpointing=checkpointing).train()
        torch.manual_seed(1)
        module(collate(rows, 0)).logp.sum().backward()
        return torch.cat([each.grad.flatten() for name, each in module.peft.named_parameters() if "lora_" in name])

    torch.testing.assert_close(gradients(True), gradients(False), atol=1e-12, rtol=1e-9)
