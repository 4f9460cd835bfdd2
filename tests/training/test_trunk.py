"""The layers below the first trained one are computed once for reference and policy, and no number knows of it."""

from __future__ import annotations

import pytest
import torch

from paretune.policy.backbone import decoder_layers
from paretune.policy.packed import Branch, Packed, collate
from paretune.policy.trunk import trunk_depth
from paretune.training.module import TrainModule

ROWS = [
    Packed([5, 9, 11, 300, 42], [Branch([7, 8], [20, 21, 22, 2]), Branch([7, 90, 8], [33, 2])]),
    Packed([17, 18], [Branch([3], [100, 101])]),
]


def batch(rows=ROWS):
    return collate(rows, 0)


def calls(module):
    """Counts the passes through the lowest layer's attention."""
    seen = []
    layer = decoder_layers(module.causal)[0]
    attention = next(each for name, each in layer.named_children() if "attn" in name)
    attention.register_forward_hook(lambda *_: seen.append(1))
    return seen


def gradients(module, logp):
    module.zero_grad()
    logp.sum().backward()
    return [each.grad for each in module.parameters() if each.grad is not None]


@pytest.mark.parametrize("saving", [False, True])
def test_a_step_of_both_passes_computes_the_trunk_once(tiny_model, make_module, saving):
    module = make_module(tiny_model, lora_layers=1, gradient_checkpointing=saving).train()
    assert trunk_depth(module.causal) == 1
    seen = calls(module)
    alone = module(batch())
    wanted, wanted_grads = alone.logp, gradients(module, alone.logp + alone.predicted.sum())
    seen.clear()
    both = batch()
    reference = module.reference_logp(both)
    found = module(both)
    grads = gradients(module, found.logp + found.predicted.sum())
    assert len(seen) == 1
    assert torch.equal(found.logp, wanted) and not torch.equal(reference, found.logp)
    assert grads and all(torch.equal(a, b) for a, b in zip(grads, wanted_grads, strict=True))
    assert torch.equal(module.reference_logp(both), reference)


def test_it_is_good_for_one_pass_over_the_same_batch(tiny_llama, make_module):
    module = make_module(tiny_llama, lora_layers=1).train()
    other = batch([Packed([1, 2, 3], [Branch([], [4, 5])])])
    wanted = module(other).logp
    seen = calls(module)
    kept = batch()
    module.reference_logp(kept)
    assert torch.equal(module(other).logp, wanted) and len(seen) == 2  # another batch is computed whole
    module.reference_logp(kept)
    assert torch.equal(module(kept).logp, module(kept).logp) and len(seen) == 4  # kept, reused, computed
    assert "forward" not in vars(decoder_layers(module.causal)[0])


def test_a_frozen_reference_keeps_it_too(tiny_llama, make_module):
    module = make_module(tiny_llama, lora_layers=1).train()
    module.freeze_reference()
    seen = calls(module)
    both = batch()
    reference = module.reference_logp(both)
    assert torch.equal(module(both).logp, reference) and len(seen) == 1


def test_the_head_may_read_at_the_trunks_end_and_below_it(tiny_qwen, make_module, monkeypatch):
    made = make_module(tiny_qwen, lora_layers=1)
    for layer in (1, None):
        module = TrainModule(made.peft, made.head, readout_layer=layer).train()
        wanted = module(batch()).predicted
        both, seen = batch(), calls(module)
        module.reference_logp(both)
        assert torch.equal(module(both).predicted, wanted) and len(seen) == 1
    monkeypatch.setattr("paretune.training.module.trunk_depth", lambda _: 2)
    assert TrainModule(made.peft, made.head, readout_layer=1)._trunk is None


def test_nothing_is_shared_where_all_layers_are_trained(tiny_llama, make_module):
    module = make_module(tiny_llama).train()
    seen = calls(module)
    both = batch()
    module.reference_logp(both), module(both)
    assert trunk_depth(module.causal) == 0 and len(seen) == 2


def test_what_is_trained_below_the_layers_is_never_passed_over(tiny_llama, make_module):
    causal = make_module(tiny_llama, lora_layers=1).causal
    causal.get_input_embeddings().weight.requires_grad_(True)
    assert trunk_depth(causal) == 0
