"""The engine: greedy answers are transformers' own, and no answer depends on what it is batched with.

Logits on the cache are compared with those of one pass without a cache: to 1e-9 in float64 where the whole model
computes in float64, to 1e-5 where transformers' norms go down to float32.
"""

from __future__ import annotations

import math

import pytest
import torch

from paretune.errors import InputError
from paretune.policy.backbone import load_backbone, project
from paretune.policy.engine import (
    Sampling,
    by_length,
    choose,
    decode,
    feed,
    pad_block,
    prefill,
    row_seed,
)
from tiny_models import WINDOWED, windowed

PREFIXES = [[5, 9, 11, 300, 42], list(range(40, 75)), [17], list(range(100, 121))]
SUFFIXES = [[7, 8, 3], [12], [99, 98, 97, 96, 95, 94], list(range(200, 218))]
PAD = 0


def answers(causal, *, prefixes=PREFIXES, suffixes=SUFFIXES, seeds=None, stop=(), **sampling):
    state = prefill(causal, prefixes, PAD)
    return decode(
        causal,
        state,
        suffixes,
        sampling=Sampling(**sampling),
        stop_ids=set(stop),
        pad_id=PAD,
        seeds=seeds or list(range(len(prefixes))),
    )


def plain_greedy(causal, ids, count):
    """Greedy tokens by transformers' own generate."""
    tokens = torch.tensor([ids])
    out = causal.generate(
        tokens, attention_mask=torch.ones_like(tokens), do_sample=False, max_new_tokens=count, eos_token_id=None,
        pad_token_id=PAD,
    )  # fmt: skip
    return out[0, len(ids) :].tolist()


@pytest.fixture
def causal(tiny_model):
    return load_backbone(str(tiny_model), dtype="float32")[0]


@pytest.fixture
def causal64(tiny_model):
    return load_backbone(str(tiny_model), dtype="float64")[0]


# --- one prefill --------------------------------------------------------------------------------------------------


def logits_after(causal, prefixes, suffixes):
    """Logits [B, V] at the end of prefix + suffix, by a prefill and its continuation."""
    state = prefill(causal, prefixes, PAD)
    feed(causal, state, suffixes, PAD)
    return project(causal, state.last_BH)


@torch.no_grad()
def logits_of(causal, ids):
    """Logits [V] at the end of a sequence, in one pass without a cache."""
    return causal(torch.tensor([ids]), use_cache=False).logits[0, -1]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_logits_on_the_prefixs_cache_are_those_of_one_pass_without_cache(causal64, exact, attention):
    causal64.set_attn_implementation(attention)
    causal = exact(causal64)
    together = logits_after(causal, PREFIXES, SUFFIXES)
    for prefix, suffix, found in zip(PREFIXES, SUFFIXES, together, strict=True):
        wanted = logits_of(causal, [*prefix, *suffix])
        torch.testing.assert_close(found, wanted, atol=1e-9, rtol=0)
        torch.testing.assert_close(logits_after(causal, [prefix], [suffix])[0], wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize(("kind", "attention"), WINDOWED)
def test_logits_with_sliding_windows_are_those_of_one_pass_without_cache(kind, attention):
    causal = windowed(kind, torch.float64, attention)
    together = logits_after(causal, PREFIXES, SUFFIXES)
    for prefix, suffix, found in zip(PREFIXES, SUFFIXES, together, strict=True):
        torch.testing.assert_close(found, logits_of(causal, [*prefix, *suffix]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("suffixes", [[[], [], [], []], [[7, 8, 3], [], [99] * 20, []]])
def test_a_suffix_may_be_empty(causal64, exact, suffixes):
    causal = exact(causal64)
    together = logits_after(causal, PREFIXES, suffixes)
    for prefix, suffix, found in zip(PREFIXES, suffixes, together, strict=True):
        torch.testing.assert_close(found, logits_of(causal, [*prefix, *suffix]), atol=1e-9, rtol=0)


def test_a_cache_without_gaps_needs_no_mask(causal):
    state = prefill(causal, [[5, 9, 11], [7, 8, 3]], PAD)
    assert (state.lengths, state.slots, state.mask(1, causal.device)) == ([3, 3], 3, None)
    feed(causal, state, [[1], [2, 3]], PAD)
    assert (state.lengths, state.slots) == ([4, 5], 5)
    assert state.mask(1, causal.device).tolist() == [[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]
    assert {layer.keys.shape[2] for layer in state.cache.layers} == {5}
    state.select([0])  # the slot that only the longer row filled goes with it
    assert (state.lengths, state.slots, state.mask(1, causal.device)) == ([4], 4, None)
    assert {layer.keys.shape[2] for layer in state.cache.layers} == {4}


def test_the_context_can_be_filled_to_its_last_token(tiny_gpt2):
    # learnt positions: one past the last does not exist, not even for padding
    causal = load_backbone(str(tiny_gpt2), dtype="float32")[0]
    causal.generation_config.eos_token_id = None
    long, short = [5 + i % 300 for i in range(249)], [17, 18]
    found = answers(causal, prefixes=[long, short], suffixes=[[7, 8, 3], [12]], max_new_tokens=4)
    assert found[0].ids == plain_greedy(causal, [*long, 7, 8, 3], 4)
    assert found[1].ids == plain_greedy(causal, [*short, 12], 4)


def test_models_with_a_recurrent_state_are_refused():
    from transformers import AutoModelForCausalLM, Lfm2Config, MambaConfig

    small = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2}
    mamba = AutoModelForCausalLM.from_config(MambaConfig(**small, state_size=4))
    with pytest.raises(InputError, match=r"MambaForCausalLM has layers whose cache is more .* \(linear_attention\)"):
        prefill(mamba, [[1, 2]], PAD)
    mixed = Lfm2Config(
        **small,
        intermediate_size=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention"],
    )
    with pytest.raises(InputError, match=r"keys and values \(conv\); use a model whose layers all attend"):
        prefill(AutoModelForCausalLM.from_config(mixed), [[1, 2]], PAD)


# --- greedy -------------------------------------------------------------------------------------------------------


def test_greedy_answers_are_those_of_transformers_generate(causal):
    causal.generation_config.eos_token_id = None
    found = answers(causal, max_new_tokens=24)
    for prefix, suffix, answer in zip(PREFIXES, SUFFIXES, found, strict=True):
        assert answer.ids == plain_greedy(causal, [*prefix, *suffix], 24)
        assert not answer.finished
    assert len({tuple(answer.ids) for answer in found}) == 4  # a model that says the same to all would prove little


def test_an_answer_is_the_same_alone_and_in_a_batch_of_mixed_lengths(causal):
    together = answers(causal, max_new_tokens=16)
    for i, answer in enumerate(together):
        assert answers(causal, prefixes=[PREFIXES[i]], suffixes=[SUFFIXES[i]], max_new_tokens=16) == [answer]


@pytest.mark.parametrize(("kind", "attention"), WINDOWED)
def test_sliding_windows_span_the_same_tokens_alone_and_in_a_batch(kind, attention):
    causal = windowed(kind, attention=attention)
    causal.generation_config.eos_token_id = None
    found = answers(causal, max_new_tokens=20)  # answers and most prompts are longer than the window
    for prefix, suffix, answer in zip(PREFIXES, SUFFIXES, found, strict=True):
        assert answer.ids == plain_greedy(causal, [*prefix, *suffix], 20)
    stop = {found[0].ids[1], found[1].ids[2]}  # and when rows leave the batch
    for answer, whole in zip(answers(causal, stop=stop, max_new_tokens=20), found, strict=True):
        assert (answer.ids, answer.finished) == cut(whole.ids, stop)


def test_the_readout_is_the_same_alone_and_in_a_batch(causal64):
    together = prefill(causal64, PREFIXES, PAD).readout_BH
    for prefix, found in zip(PREFIXES, together, strict=True):
        alone = causal64(torch.tensor([prefix]), output_hidden_states=True).hidden_states[-1][0, -1]
        torch.testing.assert_close(found, alone, atol=1e-6, rtol=0)
        torch.testing.assert_close(found, prefill(causal64, [prefix], 77).readout_BH[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_max_new_tokens(causal, count):
    for answer, whole in zip(answers(causal, max_new_tokens=count), answers(causal, max_new_tokens=8), strict=True):
        assert answer.ids == whole.ids[:count]


# --- stopping -----------------------------------------------------------------------------------------------------


def cut(ids, stop):
    """What remains of a greedy answer when it stops at the first of `stop`."""
    at = next((i for i, token in enumerate(ids) if token in stop), None)
    return (ids, False) if at is None else (ids[:at], True)


@pytest.mark.parametrize("early", [1, 2, 3])
def test_rows_that_end_leave_the_batch_and_change_no_other(causal, early):
    # eight rows; `early` of four kinds end at once, so the batch shrinks once, twice or thrice
    prefixes, suffixes = [*PREFIXES, *[p[::-1] for p in PREFIXES]], [*SUFFIXES, *SUFFIXES]
    free = answers(causal, prefixes=prefixes, suffixes=suffixes, max_new_tokens=20)
    stop = {answer.ids[2 * i] for i, answer in enumerate(free[: 2 * early])}
    found = answers(causal, prefixes=prefixes, suffixes=suffixes, stop=stop, max_new_tokens=20)
    ends = []
    for answer, whole in zip(found, free, strict=True):
        ids, finished = cut(whole.ids, stop)
        assert (answer.ids, answer.finished) == (ids, finished)
        ends.append(len(ids))
    assert len(set(ends)) > 1


def test_an_answer_may_be_empty(causal):
    first = answers(causal, max_new_tokens=1)
    stop = {answer.ids[0] for answer in first}
    assert [(each.ids, each.finished) for each in answers(causal, stop=stop, max_new_tokens=5)] == [([], True)] * 4


def test_the_last_token_allowed_may_end_the_answer(causal):
    whole = answers(causal, max_new_tokens=6)[0].ids
    last = max(i for i, token in enumerate(whole) if token not in whole[:i])
    one = answers(causal, prefixes=PREFIXES[:1], suffixes=SUFFIXES[:1], stop={whole[last]}, max_new_tokens=last + 1)
    assert (one[0].ids, one[0].finished) == (whole[:last], True)


# --- sampling -----------------------------------------------------------------------------------------------------


def test_sampled_answers_depend_on_the_seed_and_the_row_alone(causal64):
    options = dict(max_new_tokens=12, temperature=1.0, top_p=0.9)
    together = answers(causal64, seeds=[11, 12, 13, 14], **options)
    assert together == answers(causal64, seeds=[11, 12, 13, 14], **options)
    for i in range(4):
        alone = answers(causal64, prefixes=[PREFIXES[i]], suffixes=[SUFFIXES[i]], seeds=[11 + i], **options)
        assert alone == [together[i]]
    other = answers(causal64, seeds=[21, 22, 23, 24], **options)
    assert all(one.ids != two.ids for one, two in zip(together, other, strict=True))


def test_sampled_answers_survive_the_shrinking_of_the_batch(causal64):
    options = dict(max_new_tokens=16, temperature=1.0)
    free = answers(causal64, seeds=[1, 2, 3, 4], **options)
    stop = {free[0].ids[1], free[1].ids[3]}
    for answer, whole in zip(answers(causal64, seeds=[1, 2, 3, 4], stop=stop, **options), free, strict=True):
        assert (answer.ids, answer.finished) == cut(whole.ids, stop)


def test_global_random_state_is_neither_read_nor_moved(causal64):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = answers(causal64, max_new_tokens=4, temperature=1.0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert answers(causal64, max_new_tokens=4, temperature=1.0) == first


def draw(probs, count=4000, **sampling):
    """Relative frequencies of `count` draws from a hand-made distribution."""
    logits = torch.tensor(probs, dtype=torch.float64).log().expand(count, -1)
    draws = [torch.Generator().manual_seed(row_seed(0, i)) for i in range(count)]
    tokens = torch.tensor(choose(logits, [Sampling(**{"temperature": 1.0, **sampling})] * len(logits), draws))
    return (torch.bincount(tokens, minlength=len(probs)) / count).tolist()


def test_sampling_follows_the_distribution():
    assert draw([0.1, 0.5, 0.15, 0.25]) == pytest.approx([0.1, 0.5, 0.15, 0.25], abs=0.03)
    # temperature 1/2 squares and renormalises
    squared = [x * x for x in (0.1, 0.5, 0.15, 0.25)]
    wanted = [x / sum(squared) for x in squared]
    assert draw([0.1, 0.5, 0.15, 0.25], temperature=0.5) == pytest.approx(wanted, abs=0.03)


@pytest.mark.parametrize(
    ("top_p", "wanted"),
    [
        (0.45, [0, 1, 0, 0]),  # the likeliest alone holds the mass
        (0.7, [0, 0.5 / 0.75, 0, 0.25 / 0.75]),
        (0.85, [0, 0.5 / 0.9, 0.15 / 0.9, 0.25 / 0.9]),
        (0.95, [0.1, 0.5, 0.15, 0.25]),
        (1e-9, [0, 1, 0, 0]),
    ],
)
def test_the_nucleus_is_the_smallest_set_of_mass_top_p(top_p, wanted):
    assert draw([0.1, 0.5, 0.15, 0.25], top_p=top_p) == pytest.approx(wanted, abs=0.03)


def test_the_nucleus_of_a_flat_distribution_is_wider_than_the_first_candidates():
    probs = [1 / 4000] * 4000
    seen = sum(each > 0 for each in draw(probs, count=3000, top_p=0.9))
    # 3000 draws out of the 3600 tokens of the nucleus meet 3600 (1 - exp(-3000/3600)) = 2035 different ones
    assert 1950 < seen < 2120


def test_greedy_takes_the_largest():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 0.0]])
    assert choose(logits, [Sampling(temperature=0.0)] * 2, []) == [1, 0]


def test_rows_of_different_sampling_choose_as_they_would_alone():
    logits = torch.randn(6, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    kinds = [Sampling(temperature=heat, top_p=mass) for heat, mass in [(0, 1), (1, 0.9), (1, 1), (0.5, 0.3), (2, 1)]]
    kinds.append(Sampling(temperature=1.5, top_p=0.99))

    def draws():
        return [torch.Generator().manual_seed(i) for i in range(6)]

    together = choose(logits, kinds, draws())
    for i, draw in enumerate(draws()):
        assert choose(logits[i : i + 1], kinds[i : i + 1], [draw]) == [together[i]]
    assert together[0] == int(logits[0].argmax())


@pytest.mark.parametrize(
    "values",
    [
        {"max_new_tokens": 0},
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"top_p": math.nan},
    ],
)
def test_invalid_sampling(values):
    with pytest.raises(InputError, match=next(iter(values))):
        Sampling(**values)


# --- small parts --------------------------------------------------------------------------------------------------


def test_seeds_are_keyed():
    assert row_seed(0, "a", 1) == row_seed(0, "a", 1)
    seeds = {
        row_seed(*key) for key in ((0, "a", 1), (1, "a", 1), (0, "b", 1), (0, "a", 2), (0, "a1", ""), (0, "a", 1, 1))
    }
    assert len(seeds) == 6 and all(0 <= seed < 2**63 for seed in seeds)


def test_batches_by_length():
    assert by_length([3, 9, 1, 9, 5], 2) == [[1, 3], [4, 0], [2]]
    assert by_length([], 2) == []


def test_blocks_are_padded_on_the_right_to_a_multiple_of_16():
    ids, mask = pad_block([[1, 2], list(range(17))], 99, torch.device("cpu"))
    assert ids.shape == mask.shape == (2, 32)
    assert ids[0].tolist() == [1, 2] + [99] * 30 and mask.sum(1).tolist() == [2, 17]
