"""Packed rows give the numbers of separate sequences: log-probabilities, gradients, read-outs, for every attention."""

from __future__ import annotations

import pytest
import torch

from paretune.errors import InputError
from paretune.policy.packed import Branch, Packed, collate, end_states, forward, label_logp
from tiny_models import WINDOWED, windowed

ROWS = [
    Packed(
        [5, 9, 11, 300, 42], [Branch([7, 8], [20, 21, 22, 2]), Branch([7, 90, 8], [33, 2]), Branch([], [50, 51, 2])]
    ),
    Packed(list(range(40, 75)), [Branch([3, 4, 5], list(range(100, 120)))]),
    Packed([17, 18, 19], []),
    Packed([6], [Branch([], [99]), Branch([1], [99, 98])]),
]
PAD = 0


@pytest.fixture(params=["sdpa", "eager"])
def attention(request):
    return request.param


@pytest.fixture
def model(tiny_model, attention, exact):
    from transformers import AutoModelForCausalLM

    return exact(AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64, attn_implementation=attention))


def separate_logp(model, prefix, suffix, completion):
    """Summed log-probability of the completion, from one plain unpadded forward of the joined ids."""
    ids = torch.tensor([[*prefix, *suffix, *completion]])
    logp = torch.log_softmax(model(ids).logits[0], dim=-1)
    start = len(prefix) + len(suffix)
    return sum(logp[start - 1 + i, token] for i, token in enumerate(completion))


def separate(model, rows=ROWS):
    return torch.stack([separate_logp(model, row.prefix, b.suffix, b.completion) for row in rows for b in row.branches])


def test_each_branch_has_the_log_probability_of_its_own_sequence(model):
    with torch.no_grad():
        out, wanted = forward(model, collate(ROWS, PAD)), separate(model)
    assert out.logp.dtype == torch.float64
    torch.testing.assert_close(out.logp, wanted, atol=1e-9, rtol=0)
    assert out.length.tolist() == [4, 2, 3, 20, 1, 2]


def test_gradients_are_those_of_separate_sequences(model):
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0, -1.0, 0.25], dtype=torch.float64)

    def gradients(logp):
        model.zero_grad()
        (logp * weights).sum().backward()
        return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}

    packed, wanted = gradients(forward(model, collate(ROWS, PAD)).logp), gradients(separate(model))
    assert packed.keys() == wanted.keys() and len(packed) > 10
    for name, each in wanted.items():
        torch.testing.assert_close(packed[name], each, atol=1e-9, rtol=1e-9, msg=name)


def test_the_readout_is_the_hidden_state_of_the_prompt_alone(model):
    with torch.no_grad():
        readout = forward(model, collate(ROWS, PAD)).readout
        for row, found in zip(ROWS, readout, strict=True):
            alone = model(torch.tensor([row.prefix]), output_hidden_states=True).hidden_states[-1][0, -1]
            torch.testing.assert_close(found, alone, atol=1e-9, rtol=0)


@torch.no_grad()
def test_padding_bucket_pad_token_and_order_change_nothing(model):
    whole = forward(model, collate(ROWS, PAD))
    for bucket, pad in ((1, PAD), (64, PAD), (32, 77)):
        other = forward(model, collate(ROWS, pad, bucket=bucket))
        torch.testing.assert_close(other.logp, whole.logp, atol=1e-9, rtol=0)
        torch.testing.assert_close(other.readout, whole.readout, atol=1e-9, rtol=0)
    turned = forward(model, collate(ROWS[::-1], PAD))
    torch.testing.assert_close(turned.readout, whole.readout.flip(0), atol=1e-9, rtol=0)
    alone = torch.cat([forward(model, collate([row], PAD)).logp for row in ROWS])
    torch.testing.assert_close(alone, whole.logp, atol=1e-9, rtol=0)


@torch.no_grad()
def test_branches_do_not_see_each_other(model):
    one = Packed([5, 9, 11], [Branch([7], [20, 21]), Branch([8], [30, 31])])
    two = Packed([5, 9, 11], [Branch([200, 201, 202], [250, 251, 252]), Branch([8], [30, 31])])
    first, second = forward(model, collate([one], PAD)).logp, forward(model, collate([two], PAD)).logp
    torch.testing.assert_close(first[1], second[1], atol=1e-9, rtol=0)
    assert abs(first[0] - second[0]) > 1e-3


FOREST = [
    # two under one profile that begin alike, the same one again, one that ends where the others go on, one apart
    Packed(
        [5, 9, 11],
        [
            Branch([7, 8], [20, 21, 22, 2]),
            Branch([7, 8], [20, 21, 30, 31, 2]),
            Branch([7, 8], [20, 21, 22, 2]),
            Branch([7], [8, 20]),
            Branch([90], [20, 21]),
        ],
    ),
    Packed([6], [Branch([], [99]), Branch([99], [98]), Branch([99, 98], [97, 2])]),
]


def test_what_branches_have_in_common_is_there_once(model):
    assert [row.length for row in FOREST] == [3 + 4 + 2 + 3 + 3, 1 + 4]
    with torch.no_grad():
        torch.testing.assert_close(
            forward(model, collate(FOREST, PAD)).logp, separate(model, FOREST), atol=1e-9, rtol=0
        )
    one, other = FOREST[0].branches[0], FOREST[0].branches[4]
    assert Packed([5], [one, one]).length == Packed([5], [one]).length == 1 + 6
    assert Packed([5], [one, other]).length == 1 + 6 + 3 and Packed([5], []).length == 1


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rows", [ROWS, FOREST], ids=["rows", "forest"])
def test_adapter_and_head_learn_the_same_from_packed_and_from_separate_sequences(
    tiny_model, exact, checkpointing, rows
):
    """A preference loss between branches and a regression loss of the head, on float64 to 1e-9."""
    module = float64_module(tiny_model, exact, checkpointing)
    target = torch.linspace(0.1, 0.9, 2 * len(rows), dtype=torch.float64).view(-1, 2)

    def learn(logp, predicted):
        module.zero_grad()
        loss = -torch.nn.functional.logsigmoid(0.1 * (logp[0] - logp[1])) + 0.01 * logp.sum()
        loss = loss + 1000 * (predicted - target).square().mean()
        loss.backward()
        return loss.detach(), {name: each.grad for name, each in module.named_parameters() if each.grad is not None}

    def readout(row):
        hidden = module.causal(torch.tensor([row.prefix]), output_hidden_states=True, use_cache=False).hidden_states
        return hidden[-1][0, -1]

    out = module(collate(rows, PAD))
    loss, packed = learn(out.logp, out.predicted)
    wanted_loss, wanted = learn(separate(module.causal, rows), module.head(torch.stack([readout(row) for row in rows])))
    torch.testing.assert_close(loss, wanted_loss, atol=1e-9, rtol=1e-9)
    assert packed.keys() == wanted.keys() == {name for name, each in module.named_parameters() if each.requires_grad}
    assert any("lora_A" in name for name in wanted) and any(name.startswith("head.") for name in wanted)
    for name, each in wanted.items():
        torch.testing.assert_close(packed[name], each, atol=1e-9, rtol=1e-9, msg=name)


def float64_module(tiny_model, exact, checkpointing):
    """A module in training mode whose adapter and head compute in float64 throughout."""
    from paretune.policy.backbone import hidden_size, load_backbone
    from paretune.training.config import TrainConfig
    from paretune.training.module import TrainModule, add_adapter

    causal, _ = load_backbone(str(tiny_model), dtype="float64")
    settings = TrainConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0, gradient_checkpointing=checkpointing)
    peft = add_adapter(exact(causal), settings)
    torch.manual_seed(0)
    head = torch.nn.Sequential(torch.nn.Linear(hidden_size(causal), 2), torch.nn.Sigmoid()).double()
    with torch.no_grad():
        for name, each in peft.named_parameters():
            if "lora_B" in name:
                each.normal_(std=0.1)
    return TrainModule(peft, head).train()


@torch.no_grad()
def test_rows_without_branches_still_feed_the_head(model):
    out = forward(model, collate([Packed([1, 2, 3], []), Packed([4, 5], [])], PAD))
    assert out.logp.shape == (0,) and out.readout.shape[0] == 2


@torch.no_grad()
def test_the_logits_are_computed_in_chunks_without_a_trace(model, monkeypatch):
    whole = forward(model, collate(ROWS, PAD)).logp
    monkeypatch.setattr("paretune.policy.packed.LABEL_CHUNK", 3)
    torch.testing.assert_close(forward(model, collate(ROWS, PAD)).logp, whole, atol=1e-12, rtol=0)


@torch.no_grad()
def test_low_precision_log_probabilities_are_float32(tiny_llama):
    from paretune.policy.backbone import load_backbone

    causal, _ = load_backbone(str(tiny_llama), dtype="bfloat16")
    hidden = torch.randn(3, 32, dtype=torch.bfloat16)
    assert label_logp(causal, hidden, torch.tensor([1, 2, 3])).dtype == torch.float32
    assert forward(causal, collate(ROWS, PAD)).logp.dtype == torch.float32


def test_counts_of_a_batch():
    batch = collate(ROWS, PAD, bucket=32)
    assert batch.input_ids.shape == (4, 64)
    assert batch.tokens == sum(row.length for row in ROWS) == 18 + 58 + 3 + 5
    assert batch.branches == 6 and batch.readout.tolist() == [4, 34, 2, 0]
    assert batch.label.tolist() == [t for row in ROWS for b in row.branches for t in b.completion]


# --- what some architectures put between the LM head and the logits --------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("Gemma2", {"final_logit_softcapping": 2.0, "head_dim": 8, "num_key_value_heads": 2}),
        ("Cohere", {"logit_scale": 0.3, "num_key_value_heads": 2}),
        ("Granite", {"logits_scaling": 5.0, "num_key_value_heads": 2}),
        ("Llama", {"num_key_value_heads": 4}),
    ],
)
@torch.no_grad()
def test_logits_are_scaled_as_the_architecture_does(name, config):
    import transformers

    kind = getattr(transformers, f"{name}Config")(
        vocab_size=310, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.3, **config,
    )  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(kind).double().eval()
    torch.testing.assert_close(forward(model, collate(ROWS, PAD)).logp, separate(model), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "attention_kind"), WINDOWED)
def test_a_sliding_window_spans_what_it_would_span_alone(kind, attention_kind):
    causal = windowed(kind, torch.float64, attention_kind)
    with torch.no_grad():
        found = forward(causal, collate(ROWS, PAD)).logp
        torch.testing.assert_close(found, separate(causal), atol=1e-5, rtol=0)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_head_may_read_a_span_after_an_earlier_layer(model, checkpointing):
    rows = [Packed(row.prefix, row.branches, span) for row, span in zip(ROWS, (3, 35, 1, 1), strict=True)]
    if checkpointing:
        model.activation_checkpointing_enable()
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
    states = [
        model(torch.tensor([row.prefix]), output_hidden_states=True).hidden_states[1][0, -row.span :].mean(0)
        for row in rows
    ]
    out = forward(model, collate(rows, PAD), layer=1)
    torch.testing.assert_close(out.readout, torch.stack(states), atol=1e-9, rtol=0)
    weight = torch.linspace(-1, 1, out.readout.numel(), dtype=torch.float64).view_as(out.readout)

    def gradients(readout):
        model.zero_grad()
        (readout * weight).sum().backward()
        return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}

    wanted, found = gradients(torch.stack(states)), gradients(out.readout)
    assert wanted.keys() == found.keys() and len(wanted) > 5
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, atol=1e-9, rtol=1e-9, msg=name)
    with pytest.raises(InputError, match="2 layers, so the head cannot read after layer 9"):
        forward(model, collate(rows, PAD), layer=9)


@torch.no_grad()
def test_the_end_states_are_those_of_the_last_tokens_alone(model):
    rows = [*ROWS, *FOREST, Packed([8, 9], [Branch([], [])])]
    found = iter(end_states(model, collate(rows, PAD)))
    for row in rows:
        for each in row.branches:
            ids = torch.tensor([[*row.prefix, *each.suffix, *each.completion]])
            alone = model(ids, output_hidden_states=True).hidden_states[-1][0, -1]
            torch.testing.assert_close(next(found), alone, atol=1e-9, rtol=0)
    assert next(found, None) is None
