"""Rewards of packed rows are those of separate sequences; losses, masks and accumulation; TRL's loss at one output."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from paretune.reward_model.learner import RewardLearner
from tiny_rewards import as_row, pair_row, rows_of

KINDS = [("tiny_qwen", 0), ("tiny_llama", 1), ("tiny_gpt2", 0)]


@pytest.mark.parametrize(("kind", "depth"), KINDS)
def test_packed_rewards_are_those_of_separate_sequences(request, bench, kind, depth):
    from paretune.policy.packed import collate
    from paretune.reward_model.config import RewardHeadConfig

    head = RewardHeadConfig(depth=depth, width=16)
    one = bench(["kind", "polite"], model=request.getfixturevalue(kind), head=head)
    with torch.no_grad():
        out = one.module(collate([item.packed for item in one.learner.items], 0)).raw
        assert out.dtype == torch.float64 and out.shape[1] == 2
        at = 0
        for example, item in zip(one.examples, one.learner.items, strict=True):
            by_ids = {tuple(each.completion): k for k, each in example.branches.items()}
            for branch in item.branches:
                wanted = one.alone(example.row, by_ids[tuple(branch.completion)])
                torch.testing.assert_close(out[at], wanted, atol=1e-9, rtol=0)
                at += 1


def by_hand(one):
    """The loss of all rows and its parts, from separate forward passes and the formulas."""
    names = one.supervision.names
    pair, rating = [], []
    for example in one.examples:
        raw = {k: one.alone(example.row, k) for k in example.branches}
        for name, order in example.row.preferences.items():
            m = names.index(name)
            sign = -1 if one.supervision.objectives[m].direction == "minimise" else 1
            pair += [torch.log1p(torch.exp(-sign * (raw[w][m] - raw[k][m]))) for w, k in order]
        for k, each in enumerate(example.row.completions):
            m, scale = names.index("kind"), one.supervision.scales[names.index("kind")]
            rating.append((raw[k][m] - (each.scores["kind"] - scale.mean) / scale.std) ** 2)
    return sum(pair) / len(pair), sum(rating) / len(rating)


@pytest.mark.parametrize("direction", ["", "-"])
def test_the_loss_and_its_gradient_are_those_worked_out_by_hand(bench, direction):
    rows = [as_row(each) for each in rows_of(8)]
    assert sum("polite" not in row.preferences for row in rows), "some prompts must lack an objective"
    one = bench(["kind", f"{direction}polite"], rows=rows, rating_weight=0.5)
    with torch.no_grad():  # what the head standardises by
        scale = one.supervision.scales[0]
        one.head.rating_mean[0], one.head.rating_std[0] = scale.mean, scale.std
    logged, found = one.batch(), one.grads()
    one.module.zero_grad(set_to_none=True)
    pair, rating = by_hand(one)
    assert logged["pair"] == pytest.approx(pair.item(), abs=1e-9)
    assert logged["rating"] == pytest.approx(rating.item(), abs=1e-9)
    assert logged["loss"] == pytest.approx((pair + 0.5 * rating).item(), abs=1e-9)
    (pair + 0.5 * rating).backward()
    wanted = one.grads()
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        torch.testing.assert_close(found[name], each, atol=1e-9, rtol=1e-7, msg=name)


def test_accumulation_changes_nothing(bench):
    one = bench(["kind", "polite"])
    whole = one.batch(config=replace(one.config, micro_tokens=10**6)), one.grads()
    parts = one.batch(config=replace(one.config, micro_tokens=1)), one.grads()
    assert parts[0] == pytest.approx(whole[0], abs=1e-9)
    for name, each in whole[1].items():
        torch.testing.assert_close(parts[1][name], each, atol=1e-9, rtol=1e-7)


def test_gradient_checkpointing_changes_nothing(bench):
    plain, saving = bench(["kind", "polite"]), bench(["kind", "polite"], gradient_checkpointing=True)
    assert saving.batch() == pytest.approx(plain.batch(), abs=1e-9)
    for name, each in plain.grads().items():
        torch.testing.assert_close(saving.grads()[name], each, atol=1e-9, rtol=1e-7)


def test_a_prompt_split_over_items_gives_the_same_loss(bench):
    one = bench(["kind", "polite"])
    whole = one.batch(config=replace(one.config, micro_tokens=10**6))
    learner = RewardLearner(one.examples, one.supervision, one.head, replace(one.config, micro_tokens=1))
    assert len(learner) > len(one.learner)
    one.learner = learner
    assert one.batch() == pytest.approx(whole, abs=1e-9)


def test_a_missing_objective_gives_no_gradient(bench):
    rows = [as_row(each) for each in rows_of(8)]
    one = bench(["kind", "polite"], rows=rows)
    silent = [item for item in one.learner.items if not item.pairs]
    assert 0 < len(silent) < len(one.learner.items)
    one.batch(silent)
    slope = one.head.layers[-1].weight.grad
    assert slope[1].abs().max() == 0 and slope[0].abs().max() > 0
    one.batch(one.learner.items)
    assert one.head.layers[-1].weight.grad[1].abs().max() > 0


def test_ordinal_ratings_teach_rewards_and_thresholds(bench):
    one = bench(["kind"], loss="ordinal", source="ratings")
    logged = one.batch()
    assert one.supervision.levels == [(0.0, 1.0, 2.0, 3.0, 4.0)]
    wanted = []
    for example in one.examples:
        for k, each in enumerate(example.row.completions):
            logits = [one.alone(example.row, k)[0] - cut for cut in one.head.cuts[0]]
            above = [each.scores["kind"] > t for t in range(4)]
            parts = [torch.nn.functional.softplus(-x if up else x) for x, up in zip(logits, above, strict=True)]
            wanted.append(sum(parts) / 4)
    assert logged["rating"] == pytest.approx((sum(wanted) / len(wanted)).item(), abs=1e-9)
    assert one.head.cuts.grad.abs().min() > 0


def test_accuracy_is_counted(bench):
    rows = [pair_row(i, f"yes {i}", f"no, never {i}") for i in range(6)]
    one = bench(["preference"], rows=rows)
    with torch.no_grad():
        right = sum((one.alone(row, 0) > one.alone(row, 1)).item() for row in rows)
    assert one.batch()["pair_accuracy"] == pytest.approx(right / 6)


@pytest.mark.parametrize(("center", "margin"), [(0.0, False), (0.25, False), (0.25, True)])
def test_one_output_has_trls_loss(bench, center, margin, tmp_path):
    """TRL's RewardTrainer.compute_loss on the same rewards, its margins and its centring."""
    from collections import defaultdict
    from types import SimpleNamespace

    from trl import RewardTrainer

    scores = [(4.0, 1.0), (2.0, 1.5), (3.0, 2.5)]
    rows = [
        pair_row(i, f"yes {i}", f"no, never {i}", chosen={"good": one}, rejected={"good": two})
        for i, (one, two) in enumerate(scores)
    ]
    one = bench(
        ["good"], rows=rows, preference="good", source="pairs", center=center, margin="ratings" if margin else "none"
    )
    logged = one.batch()
    with torch.no_grad():
        rewards = torch.stack([one.alone(row, side) for side in (0, 1) for row in rows])

    class Stub:
        training = False

        def __call__(self, **inputs):
            return SimpleNamespace(logits=rewards)

    this = SimpleNamespace(
        model=Stub(),
        args=SimpleNamespace(center_rewards_coefficient=center or None),
        accelerator=SimpleNamespace(gather_for_metrics=lambda value: value, gather=lambda value: value),
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    inputs = {"attention_mask": torch.ones(6, 3)}
    if margin:
        std = one.supervision.scales[0].std
        inputs["margin"] = torch.tensor([(a - b) / std for a, b in scores], dtype=torch.float64)
    wanted = RewardTrainer.compute_loss(this, Stub(), inputs)
    assert logged["loss"] == pytest.approx(wanted.item(), abs=1e-9)
    assert not math.isclose(logged["loss"], math.log(2), abs_tol=1e-3)
