"""Mixed decoding: every token is the one that separate full forwards of each model, mixed by hand, would choose."""

from __future__ import annotations

import pytest
import torch

from paretune.errors import InputError
from paretune.policy.engine import Prefilled, Sampling, decode, prefill
from paretune.policy.mixture import Voice, mixed_logits
from several_adapters import NAMES, several, with_deltas

W = {"brevity": 0.5, "cheer": 0.3, "rude_words": 0.2}
PREFIXES = [[5, 9, 11, 300, 42], list(range(40, 75)), [17], list(range(100, 121))]


def texts(answers):
    return [each.text for each in answers]


def mixed(models, weights, ids):
    """log p of the next token: prod_i p_i^w_i over its sum, from a full forward of each model."""
    with torch.no_grad():
        parts = [torch.softmax(model(torch.tensor([ids])).logits[0, -1].double(), -1) for model in models]
    product = torch.ones_like(parts[0])
    for part, weight in zip(parts, weights, strict=True):
        product = product * part**weight
    return (product / product.sum()).log()


def greedy(models, weights, ids, count, stop=()):
    """Tokens by hand, each from full forwards of all that is there."""
    out = []
    for _ in range(count):
        token = int(mixed(models, weights, [*ids, *out]).argmax())
        if token in stop:
            break
        out.append(token)
    return out


@pytest.fixture
def pot(tiny_model, exact):
    """A policy that mixes three adapters, and the three models with their deltas added by hand, all in float64."""
    policy, tensors = several(tiny_model, "mix", dtype="float64", lift=exact)
    return policy, [exact(with_deltas(tiny_model, {at: 1.0}, tensors, "float64")) for at in range(3)]


def voices(policy, prefixes, weights):
    out = []
    for blend in policy.parts.blends(weights):

        def use(blend=blend):
            policy.parts.use(blend)

        use()
        out.append(Voice(prefill(policy.causal, prefixes, 0), blend.weight, use))
    return out


def test_mixed_distributions_are_those_of_separate_full_forwards(pot):
    policy, models = pot
    found = torch.log_softmax(mixed_logits(policy.causal, voices(policy, PREFIXES, W)), -1)
    for row, ids in zip(found, PREFIXES, strict=True):
        torch.testing.assert_close(row, mixed(models, W.values(), ids), atol=1e-9, rtol=0)


def test_greedy_answers_are_those_by_hand_in_any_batch(pot, prompts):
    policy, models = pot
    stop = policy.renderer.stop_ids(policy.causal.generation_config.eos_token_id)
    together = policy.generate(prompts, weights=W, max_new_tokens=10)
    for prompt, answer in zip(prompts, together, strict=True):
        ids = [*policy.renderer.prefix(prompt), *policy.renderer.suffix(prompt, None)]
        wanted = greedy(models, W.values(), ids, 10, stop)
        assert answer.text == policy.tokenizer.decode(wanted, skip_special_tokens=True)
        assert answer.tokens == len(wanted)
    assert policy.generate(prompts, weights=W, max_new_tokens=10, batch_size=2) == together


def test_all_weight_on_one_is_that_adapters_greedy_answer(tiny_model, prompts):
    policy, _ = several(tiny_model, "mix")
    soup, _ = several(tiny_model, "soup")
    for name in NAMES:
        asked = {"weights": {name: 1.0}, "max_new_tokens": 8}
        assert texts(policy.generate(prompts, **asked)) == texts(soup.generate(prompts, **asked))


def test_a_mix_is_not_a_soup(tiny_llama, prompts):
    asked = {"weights": W, "max_new_tokens": 12}
    mix, soup = several(tiny_llama, "mix")[0], several(tiny_llama, "soup")[0]
    assert texts(mix.generate(prompts, **asked)) != texts(soup.generate(prompts, **asked))


def test_adapters_without_weight_do_not_run(tiny_llama, prompts, monkeypatch):
    policy, _ = several(tiny_llama, "mix")
    passes = []
    layer = policy.causal.model.layers[0].mlp.up_proj
    layer.register_forward_hook(lambda *_: passes.append(tuple(layer.active_adapters)))
    policy.generate(prompts[:1], weights={"brevity": 0.5, "rude_words": 0.5}, max_new_tokens=3)
    policy.generate(prompts[:1], weights={"cheer": 1.0}, max_new_tokens=1)
    assert set(passes[:-2]) == {("part0",), ("part2",)} and len(passes[:-2]) % 2 == 0
    assert set(passes[-2:]) == {("part1",)}


def test_a_sampled_answer_is_drawn_from_the_mix_by_the_rows_own_seed(tiny_llama, exact):
    policy, tensors = several(tiny_llama, "mix", dtype="float64", lift=exact)
    models = [exact(with_deltas(tiny_llama, {at: 1.0}, tensors, "float64")) for at in range(3)]

    def draw(prefixes, seeds, temperature=0.7):
        return [
            each.ids[0] if each.ids else None
            for each in decode(
                policy.causal,
                voices(policy, prefixes, W),
                [[]] * len(prefixes),
                sampling=Sampling(1, temperature),
                stop_ids=set(),
                pad_id=0,
                seeds=seeds,
            )
        ]

    seeds = list(range(600))
    found = draw([[5, 9, 11, 300]] * 600, seeds)
    assert draw([[5, 9, 11, 300]] * 3, [7, 300, 2]) == [found[7], found[300], found[2]]
    wanted = torch.softmax(mixed(models, W.values(), [5, 9, 11, 300]) / 0.7, -1)
    counts = torch.bincount(torch.tensor(found), minlength=len(wanted)) / 600
    assert (counts - wanted).abs().max() < 0.07 and wanted.max() < 0.9


def test_rows_that_end_early_leave_the_others_as_they_are(tiny_llama):
    policy, _ = several(tiny_llama, "mix")
    options = {"sampling": Sampling(12), "pad_id": 0}
    free = decode(policy.causal, voices(policy, PREFIXES, W), [[]] * 4, stop_ids=set(), seeds=[0] * 4, **options)
    stop = {free[0].ids[1]}  # the first row ends with its second token
    cut = decode(policy.causal, voices(policy, PREFIXES, W), [[]] * 4, stop_ids=stop, seeds=[0] * 4, **options)
    assert cut[0].finished and cut[0].ids == free[0].ids[:1]
    for short, long in zip(cut, free, strict=True):
        assert short.ids == long.ids[: len(short.ids)]


def test_one_state_is_a_mix_of_one(tiny_llama):
    policy, _ = several(tiny_llama, "soup")
    policy.parts.use(policy.parts.blends(W)[0])
    options = {"sampling": Sampling(6), "stop_ids": set(), "pad_id": 0, "seeds": [0] * 4}
    state = prefill(policy.causal, PREFIXES, 0)
    assert isinstance(state, Prefilled)
    alone = decode(policy.causal, state, [[]] * 4, **options)
    assert decode(policy.causal, [Voice(prefill(policy.causal, PREFIXES, 0))], [[]] * 4, **options) == alone


def test_what_a_mix_cannot_do(tiny_llama, prompts):
    policy, _ = several(tiny_llama, "mix")
    with pytest.raises(InputError, match="trained by 'mod' mixes models: it has no likelihood of one pass"):
        policy.loglik(prompts[:1], ["Hi"], [None])
    with pytest.raises(InputError, match="mixes 3 models under these weights"):
        policy.fuse(W)
    wanted = texts(policy.generate(prompts, weights={"cheer": 1.0}, max_new_tokens=6))
    policy.fuse({"cheer": 1.0})
    assert texts(policy.generate(prompts, max_new_tokens=6)) == wanted
