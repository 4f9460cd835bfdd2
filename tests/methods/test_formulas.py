"""Each method's loss on a fixed batch equals its formula, computed independently with separate float64 forwards."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest
import torch

from paretune.methods.pairwise import padded
from paretune.methods.requests import SensedRows, profile_distance


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def preference_terms(bench, beta, profile_of):
    """-log sigmoid(beta * ((logp_c - logp_r) - (ref_c - ref_r))) of each example, from the definition."""
    terms = []
    for example in bench.examples:
        chosen, rejected = bench.texts(example)
        profile = profile_of(example, chosen)
        margin = 0.0
        for sign, text in ((1, chosen), (-1, rejected)):
            policy = bench.logp(bench.module.causal, example, text, profile)
            margin += sign * (policy - bench.logp(bench.base, example, text, profile))
        terms.append(-log_sigmoid(beta * margin))
    return terms


def sensing_error(bench, standardise):
    """Mean squared error of the head on the chosen completion's scores, rounded to two decimals."""
    squared = []
    for example in bench.examples:
        target = torch.tensor([round(v, 2) for v in bench.profile(example, bench.texts(example)[0]).values()])
        error = bench.predicted(example) - target
        squared.append((error / bench.module.head.target_std if standardise else error).square())
    return torch.stack(squared).mean().item()


def items(bench, epoch=0):
    return [bench.learner.item(i, epoch) for i in range(len(bench.examples))]


# --- the paper's presets ------------------------------------------------------------------------------------------


def test_paper_is_dpo_plus_1000_times_mse(tiny_model, bench):
    b = bench("sga", tiny_model, "preset=paper")
    assert (b.config.weight_dpo, b.config.weight_sense, b.config.beta) == (1.0, 1000.0, 0.1)
    logged = b.batch(items(b))
    wanted_dpo = sum(preference_terms(b, 0.1, b.profile)) / len(b.examples)
    wanted_mse = sensing_error(b, standardise=False)
    assert logged["dpo"] == pytest.approx(wanted_dpo, abs=1e-9)
    assert logged["sense"] == pytest.approx(wanted_mse, abs=1e-6)  # the head is float32
    assert logged["loss"] == pytest.approx(wanted_dpo + 1000 * wanted_mse, rel=1e-5)
    assert 0.1 < wanted_dpo < 5 and wanted_mse > 0.001


def test_paper_conditions_both_completions_on_the_chosen_ones_scores(tiny_llama, bench):
    b = bench("sga", tiny_llama, "preset=paper")
    for example, item in zip(b.examples, items(b), strict=True):
        chosen, rejected = b.texts(example)
        shown = [b.renderer.tokenizer.decode([*each.suffix, *each.completion]) for each in item.branches]
        scores = b.profile(example, chosen)
        text = "Your response must satisfy the following scores: " + " and ".join(
            f"<{name}_score:{value:.2f}>" for name, value in scores.items()
        )
        header = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        assert shown == [f"\n{text}{header}{answer}<|eot_id|>" for answer in (chosen, rejected)]
        assert "score" not in b.renderer.tokenizer.decode(item.prefix)  # the head reads the raw prompt


def test_papers_head_moves_the_backbone(tiny_llama, bench):
    b = bench("sga", tiny_llama, "preset=paper")
    b.batch(items(b))
    with_head = b.grads()
    b.learner.weights = type(b.learner.weights)(dpo=1.0, beta=0.1)
    b.batch(items(b))
    name = next(name for name in with_head if "lora_A" in name)
    assert (with_head[name] - b.grads()[name]).abs().max() > 1e-6


def test_paper_sft_is_likelihood_plus_1000_times_mse(tiny_model, bench):
    b = bench("sga", tiny_model, "preset=paper-sft")
    logged = b.batch(items(b))
    nll = tokens = 0.0
    for example in b.examples:
        chosen = b.texts(example)[0]
        nll -= b.logp(b.module.causal, example, chosen, b.profile(example, chosen))
        tokens += len(b.renderer.completion(chosen))
    assert logged["likelihood"] == pytest.approx(nll / tokens, abs=1e-9)
    assert logged["loss"] == pytest.approx(nll / tokens + 1000 * sensing_error(b, standardise=False), rel=1e-5)
    assert "dpo" not in logged


def test_reference_free_leaves_the_base_model_out(tiny_llama, bench):
    b = bench("sga", tiny_llama, "preset=paper", "reference_free=true")
    wanted = 0.0
    for example in b.examples:
        chosen, rejected = b.texts(example)
        profile = b.profile(example, chosen)
        values = [b.logp(b.module.causal, example, text, profile) for text in (chosen, rejected)]
        wanted -= log_sigmoid(0.1 * (values[0] - values[1])) / len(b.examples)
    assert b.batch(items(b))["dpo"] == pytest.approx(wanted, abs=1e-9)
    assert not b.learner.needs_reference


# --- ours ---------------------------------------------------------------------------------------------------------


def test_robust_with_contrast(tiny_model, bench):
    b = bench(
        "sga",
        tiny_model,
        "completions=3",
        "weight_contrast=0.7",
        "contrast_beta=0.3",
        "contrast_margin=0",
        "unconditioned=0",
        count=4,
    )
    logged = b.batch(items(b))
    nll = tokens = 0.0
    cycles = []  # of three completions there are two cycles, and the draw decides which is used
    for example in b.examples:
        texts = [each.text for each in example.row.completions]
        own = [b.profile(example, text) for text in texts]
        table = {
            (i, j): b.logp(b.module.causal, example, texts[i], own[j]) for i, j in itertools.product(range(3), repeat=2)
        }
        nll -= sum(table[i, i] for i in range(3))
        tokens += sum(len(b.renderer.completion(text)) for text in texts)
        term = {(i, j): -log_sigmoid(0.3 * (table[i, i] - table[i, j])) for i, j in table}
        cycles.append((term[0, 1] + term[1, 2] + term[2, 0], term[0, 2] + term[2, 1] + term[1, 0]))
    assert logged["likelihood"] == pytest.approx(nll / tokens, abs=1e-9)
    contrasts = [sum(choice) / 12 for choice in itertools.product(*cycles)]
    nearest = min(contrasts, key=lambda value: abs(value - logged["contrast"]))
    assert logged["contrast"] == pytest.approx(nearest, abs=1e-9)
    assert logged["sense"] == pytest.approx(sensing_error(b, standardise=True), rel=1e-5)
    assert logged["loss"] == pytest.approx(nll / tokens + 0.7 * nearest + logged["sense"], rel=1e-7)


def test_a_detached_head_leaves_the_backbone_alone(tiny_llama, bench):
    b = bench("sga", tiny_llama, "backbone_grad_scale=0", "weight_contrast=0")
    b.batch(items(b))
    whole = b.grads()
    b.learner.weights = type(b.learner.weights)(likelihood=1.0)
    b.batch(items(b))
    for name, each in b.grads().items():
        torch.testing.assert_close(whole[name], each, atol=1e-12, rtol=0)


def test_unconditioned_rows_see_the_chosen_answer_without_a_profile(tiny_llama, bench):
    b = bench("sga", tiny_llama, "unconditioned=1", "completions=1")
    logged = b.batch(items(b))
    nll = -sum(b.logp(b.module.causal, example, b.texts(example)[0], None) for example in b.examples)
    tokens = sum(len(b.renderer.completion(b.texts(example)[0])) for example in b.examples)
    assert logged["likelihood"] == pytest.approx(nll / tokens, abs=1e-9)


@pytest.mark.parametrize("margin", [0.0, 0.4, 1.0])
def test_completions_with_near_profiles_are_not_contrasted(tiny_llama, bench, margin):
    b = bench("sga", tiny_llama, "completions=3", f"contrast_margin={margin}")
    contrasts = 0
    for example, item in zip(b.examples, items(b), strict=True):
        profiles = {tuple(each.ids): each.profile for each in example.answers}
        for own, other in item.contrast:
            assert item.branches[own].completion == item.branches[other].completion
            assert item.branches[own].suffix != item.branches[other].suffix
            assert b.renderer.suffix(example.row.prompt, profiles[tuple(item.branches[own].completion)]) == list(
                item.branches[own].suffix
            )
        far = sum(
            profile_distance(a.profile, c.profile) >= margin for a, c in itertools.combinations(example.answers, 2)
        )
        assert len(item.contrast) == far  # three completions in a cycle: each pair of them once
        contrasts += far
    assert contrasts == (18 if margin == 0 else contrasts) and (margin < 1 or contrasts == 0)


def test_half_the_pairs_may_ask_for_the_rejected_completion(tiny_llama, bench):
    b = bench("sga", tiny_llama, "preset=paper", "request_rejected=0.5", "unconditioned=0.2")
    seen = {"chosen": 0, "rejected": 0, "nothing": 0}
    for epoch in range(8):
        for example, item in zip(b.examples, items(b, epoch), strict=True):
            winner, loser = (item.branches[i] for i in item.preference)
            chosen, rejected = (list(example.answers[i].ids) for i in (0, 1))
            assert winner.suffix == loser.suffix  # one request, two answers
            suffixes = [example.suffix(each.profile) for each in example.answers[:2]]
            if list(winner.suffix) == suffixes[1]:
                assert [list(winner.completion), list(loser.completion)] == [rejected, chosen]
                seen["rejected"] += 1
            else:
                assert [list(winner.completion), list(loser.completion)] == [chosen, rejected]
                seen["chosen" if list(winner.suffix) == suffixes[0] else "nothing"] += 1
    assert sum(seen.values()) == 48 and min(seen.values()) >= 4
    assert 13 <= seen["rejected"] <= 26  # half of those with a condition, drawn


def test_a_stage_of_likelihood_comes_first(tiny_llama, bench):
    b = bench("sga", tiny_llama, "weight_dpo=1", "sft_epochs=1", "epochs=2", "unconditioned=0")
    for item in items(b, 0):
        assert item.preference is None and not item.contrast and len(item.likelihood) == 2
    for item in items(b, 1):
        assert item.preference is not None and item.likelihood
    assert any(item.contrast for item in items(b, 1))


def rows_sensed(b, value=0.3):
    """What a head would sense, made up: the same profile for every row, with a known residual."""
    names = b.learner.names
    targets = torch.tensor([[each.target[name] for name in names] for each in b.examples])
    return SensedRows.of(names, torch.full_like(targets, value), targets)


def test_scheduled_sampling_conditions_on_what_is_sensed_as_inference_renders_it(tiny_llama, bench):
    b = bench("sga", tiny_llama, "preset=paper", "head_warmup=1", "sensed_share=0.5", "epochs=10", "snap=paper")
    b.learner.sensed = rows_sensed(b)
    told = [
        [list(item.branches[0].suffix) == example.suffix(b.renderer.snapped({"brevity": 0.3, "cheer": 0.3}))
         for example, item in zip(b.examples, items(b, epoch), strict=True)]
        for epoch in range(10)
    ]  # fmt: skip
    early, late = sum(sum(each) for each in told[:2]), sum(sum(each) for each in told[5:])
    assert early <= 4 and 7 <= late <= 23  # from none to half of the rows by the middle of training
    for example, item, sensed in zip(b.examples, items(b, 9), told[9], strict=True):
        assert [list(each.completion) for each in item.branches] == [each.ids for each in example.answers[:2]]
        if not sensed:
            assert list(item.branches[0].suffix) == example.suffix(example.answers[0].profile)


def test_a_sensed_row_teaches_the_completion_nearest_to_what_is_sensed(tiny_llama, bench):
    b = bench("sga", tiny_llama, "head_warmup=1", "sensed_share=1", "epochs=2", "unconditioned=0", "weight_contrast=0")
    b.learner.sensed = rows_sensed(b)
    sensed = {"brevity": 0.3, "cheer": 0.3}
    for example, item in zip(b.examples, items(b, 1), strict=True):
        first = item.branches[item.likelihood[0]]
        near = min(example.answers, key=lambda each: profile_distance(each.profile, sensed))
        assert list(first.suffix) == example.suffix(sensed) and list(first.completion) == near.ids
        assert len(item.likelihood) == 2  # the second answer stays under its own profile


def test_jitter_blurs_by_the_residual(tiny_llama, bench):
    b = bench("sga", tiny_llama, "style=scores", "head_warmup=1", "jitter=1", "unconditioned=0")
    names = ["brevity", "cheer"]
    truth = torch.tensor([[0.5, 0.5]] * 4000)
    spread = torch.distributions.MultivariateNormal(torch.zeros(2), torch.tensor([[0.25, 0.15], [0.15, 0.36]]))
    torch.manual_seed(0)
    sensed = torch.special.ndtr(spread.sample((4000,)))
    rows = SensedRows.of(names, sensed, truth)
    factor = torch.tensor(rows.factor)
    torch.testing.assert_close(factor @ factor.T, torch.tensor([[0.25, 0.15], [0.15, 0.36]]), atol=0.02, rtol=0)
    draw = random.Random(0)
    drawn = torch.tensor([list(rows.blurred({"brevity": 0.5, "cheer": 0.5}, 2.0, draw).values()) for _ in range(4000)])
    z = torch.special.ndtri(drawn.double())
    torch.testing.assert_close(z.T.cov().float(), 4 * factor @ factor.T, atol=0.12, rtol=0)
    assert rows.blurred({"cheer": 0.2}, 0.0, draw) == pytest.approx({"cheer": 0.2})
    b.learner.sensed = rows
    blurred = items(b)
    for example, item in zip(b.examples, blurred, strict=True):
        own = {tuple(example.suffix(each.profile)) for each in example.answers}
        assert not any(tuple(branch.suffix) in own for branch in item.branches)
    shown = [[tuple(branch.suffix) for branch in item.branches] for item in blurred]
    assert [[tuple(branch.suffix) for branch in item.branches] for item in items(b)] == shown  # keyed draws


def test_several_good_completions_are_all_taught_to_the_head(tiny_llama, bench):
    b = bench("sga", tiny_llama, "weight_contrast=0", "head.kind=gaussian")
    batch = items(b)
    for item in batch[:2]:
        item.goods = [[0.2, 0.4], [0.6, math.nan], [0.1, 0.9]]
    whole = b.batch(batch)
    goods = padded([item.goods for item in batch])
    assert goods.shape == (6, 3, 2) and torch.isnan(goods[2, 1:]).all()
    states = torch.stack([head_input(b, example) for example in b.examples])
    with torch.no_grad():
        wanted = float(b.module.head.loss(b.module.head(states), goods, standardise=True))
    assert whole["sense"] == pytest.approx(wanted, rel=1e-5)
    assert b.batch(batch, micro_tokens=1)["sense"] == pytest.approx(wanted, rel=1e-5)


def head_input(b, example):
    """The state the head reads, from one plain forward of the raw prompt."""
    ids = torch.tensor([b.renderer.prefix(example.row.prompt)])
    with torch.no_grad():
        states = b.module.causal(ids, output_hidden_states=True).hidden_states
    layer = b.config.head.layer_of(len(states) - 1)
    return states[-1 if layer is None else layer][0, -example.span :].mean(0)


def test_profile_distance():
    assert profile_distance({"a": 0.1, "b": 0.5}, {"a": 0.4, "b": 0.4}) == pytest.approx(0.2)
    assert profile_distance({"a": 0.1, "b": 0.5}, {"b": 0.4}) == pytest.approx(0.1)
    assert profile_distance({"a": 0.1}, {"b": 0.4}) == 0


# --- the baselines ------------------------------------------------------------------------------------------------


def test_dpo(tiny_model, bench):
    b = bench("dpo", tiny_model, "beta=0.2")
    logged = b.batch(items(b))
    assert logged["dpo"] == pytest.approx(sum(preference_terms(b, 0.2, lambda *_: None)) / 6, abs=1e-9)
    assert logged["loss"] == pytest.approx(logged["dpo"], abs=1e-12)


def test_sft(tiny_model, bench):
    b = bench("sft", tiny_model)
    logged = b.batch(items(b))
    nll = -sum(b.logp(b.module.causal, example, b.texts(example)[0], None) for example in b.examples)
    tokens = sum(len(b.renderer.completion(b.texts(example)[0])) for example in b.examples)
    assert logged["loss"] == pytest.approx(nll / tokens, abs=1e-9)
    assert all(len(item.branches) == 1 for item in items(b))


def test_dpo_is_trls(tiny_llama, bench, tmp_path):
    datasets, trl = pytest.importorskip("datasets"), pytest.importorskip("trl")
    b = bench("dpo", tiny_llama)
    adapter = {name: each.clone() for name, each in b.module.peft.named_parameters() if "lora_" in name}
    with torch.no_grad():  # TRL takes a copy of the adapter as it finds it for its reference: the base, at zero
        for name, each in b.module.peft.named_parameters():
            if "lora_B" in name:
                each.zero_()
    rows = [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    trainer = trl.DPOTrainer(
        model=b.module.peft,
        args=trl.DPOConfig(
            str(tmp_path), beta=0.1, use_cpu=True, bf16=False, report_to=[], gradient_checkpointing=False
        ),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=b.renderer.tokenizer,
    )
    with torch.no_grad():
        for name, each in b.module.peft.named_parameters():
            if name in adapter:
                each.copy_(adapter[name])
    sides = [[], []]
    for example in b.examples:
        start = [*b.renderer.prefix(example.row.prompt), *b.renderer.suffix(example.row.prompt, None)]
        for side, text in zip(sides, b.texts(example), strict=True):
            answer = b.renderer.completion(text)
            side.append(([*start, *answer], [0] * len(start) + [1] * len(answer)))
    width = max(len(ids) for side in sides for ids, _ in side)

    def padded(rows, fill):
        return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])

    both = [*sides[0], *sides[1]]
    inputs = {
        "input_ids": padded([ids for ids, _ in both], b.renderer.tokenizer.pad_token_id),
        "attention_mask": padded([[1] * len(ids) for ids, _ in both], 0),
        "completion_mask": padded([mask for _, mask in both], 0),
    }
    with torch.no_grad():
        wanted = float(trainer._compute_loss(b.module.peft, inputs, return_outputs=False))
    b.module.peft.set_adapter("default")
    assert b.batch(items(b))["dpo"] == pytest.approx(wanted, abs=1e-6)
    assert abs(wanted - math.log(2)) > 0.01


# --- accumulation, masks, draws -----------------------------------------------------------------------------------

CASES = [
    ("sga", "preset=paper"),
    ("sga", "preset=paper-sft"),
    ("sga", "weight_contrast=0.7", "weight_dpo=0.5", "unconditioned=0.3"),
    ("dpo",),
    ("sft",),
]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_accumulation_is_the_batch(tiny_llama, bench, case):
    b = bench(case[0], tiny_llama, *case[1:])
    batch = items(b)
    whole = b.batch(batch, micro_tokens=10**6)
    wanted = b.grads()
    parts = b.batch(batch, micro_tokens=1)
    assert whole.keys() == parts.keys()
    for key, value in whole.items():
        near = 1e-9 if key in ("dpo", "likelihood", "contrast", "dpo_accuracy", "control_accuracy") else 1e-6
        assert parts[key] == pytest.approx(value, abs=near, rel=1e-6 if near > 1e-9 else 0), key
    for name, each in b.grads().items():
        if name.startswith("head.") or b.config.to_dict().get("backbone_grad_scale"):  # through the float32 head
            torch.testing.assert_close(each, wanted[name], atol=1e-4, rtol=1e-4, msg=name)
        else:
            torch.testing.assert_close(each, wanted[name], atol=1e-9, rtol=1e-9, msg=name)


def test_missing_scores_are_masked_not_zero(tiny_llama, bench):
    b = bench("sga", tiny_llama, "preset=paper")
    whole = items(b)
    for item in whole[:3]:
        item.goods[0][1] = math.nan
    logged = b.batch(whole, micro_tokens=1)
    errors = []
    for example, item in zip(b.examples, whole, strict=True):
        pairs = zip(b.predicted(example).tolist(), item.goods[0], strict=True)
        errors += [(guess - truth) ** 2 for guess, truth in pairs if not math.isnan(truth)]
    assert len(errors) == 9
    assert logged["sense"] == pytest.approx(sum(errors) / 9, rel=1e-5)
    for item in whole:
        item.goods = [[math.nan, math.nan]]
    assert "sense" not in b.batch(whole)


def test_draws_are_keyed_by_seed_epoch_and_row(tiny_llama, bench):
    b = bench("sga", tiny_llama, "weight_contrast=1", "unconditioned=0.5", "completions=2")

    def picture(epoch, learner=b.learner):
        return [
            [(tuple(x.suffix), tuple(x.completion)) for x in learner.item(i, epoch).branches]
            for i in range(len(learner))
        ]

    first = picture(0)
    torch.manual_seed(9)
    assert picture(0) == first  # whatever was drawn elsewhere
    assert picture(1) != first
    assert picture(0)[::-1] == [picture(0)[i] for i in reversed(range(len(first)))]
    other = type(b.learner)(b.examples, type(b.config)(**{**vars(b.config), "seed": 1}), b.learner.names)
    assert picture(0, other) != first
    turned = type(b.learner)(b.examples[::-1], b.config, b.learner.names)
    assert picture(0, turned) == first[::-1]  # the row's id, not its place


def test_a_branch_serves_every_role_that_needs_it(tiny_llama, bench):
    b = bench(
        "sga", tiny_llama, "weight_dpo=1", "weight_sft=1", "weight_contrast=1", "unconditioned=0", "completions=3"
    )
    for item in items(b):
        shown = [(tuple(each.suffix), tuple(each.completion)) for each in item.branches]
        assert len(set(shown)) == len(shown)


def test_answers_end_with_the_end_of_the_turn(tiny_model, bench):
    b = bench("dpo", tiny_model)
    for item in items(b):
        for branch in item.branches:
            assert branch.completion[-1] == b.renderer.end_of_turn
            assert not re.search(r"<\|", b.renderer.tokenizer.decode(branch.completion[:-1]))
