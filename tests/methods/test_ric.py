"""RiC: the loss is its formula, the markers are z-scores of the training completions, weights ask as the paper does."""

from __future__ import annotations

import math
import statistics

import pytest

from paretune.data import read_rows, split_rows
from paretune.errors import InputError
from paretune.files import read_json
from paretune.policy import load_policy


def items(bench, epoch=0):
    return [bench.learner.item(i, epoch) for i in range(len(bench.examples))]


def z_scores(bench, rows):
    """Mean and standard deviation of each objective's values over all completions, by the statistics module."""
    out = {}
    for objective in bench.objectives:
        values = [
            objective.normalise(completion.scores[objective.name]) for row in rows for completion in row.completions
        ]
        out[objective.name] = (statistics.mean(values), statistics.pstdev(values))
    return out


def test_the_loss_is_the_likelihood_of_every_completion_under_its_own_z_scores(tiny_model, bench):
    b = bench("ric", tiny_model, "completions=0")
    logged = b.batch(items(b))
    nll = tokens = 0.0
    for example in b.examples:
        for completion in example.row.completions:
            nll -= b.logp(b.module.causal, example, completion.text, b.profile(example, completion.text))
            tokens += len(b.renderer.completion(completion.text))
    assert logged["loss"] == logged["likelihood"] == pytest.approx(nll / tokens, abs=1e-9)
    assert not b.learner.needs_reference


def test_the_prompt_ends_with_the_markers_of_the_completions_own_z_scores(tiny_llama, bench, scored_rows):
    b = bench("ric", tiny_llama, "completions=0")
    known = z_scores(b, read_rows(scored_rows))
    for example, item in zip(b.examples, items(b), strict=True):
        shown = {b.renderer.tokenizer.decode([*each.suffix, *each.completion]) for each in item.branches}
        wanted = set()
        for completion in example.row.completions:
            values = b.profile(example, completion.text)
            z = [(values[name] - mean) / deviation for name, (mean, deviation) in known.items()]
            marks = " ".join(f"<rm{i}_score> {value:.1f}" for i, value in enumerate(z, start=1)).replace("-0.0", "0.0")
            header = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
            wanted.add(f"\n{marks}{header}{completion.text}<|eot_id|>")
        assert shown == wanted


def test_some_completions_are_drawn_anew_each_epoch_and_the_same_for_a_seed(tiny_llama, bench):
    b = bench("ric", tiny_llama, "completions=2")
    drawn = [[{tuple(branch.completion) for branch in item.branches} for item in items(b, epoch)] for epoch in (0, 1)]
    assert all(len(each) == 2 for epoch in drawn for each in epoch) and drawn[0] != drawn[1]
    assert drawn[0] == [{tuple(branch.completion) for branch in item.branches} for item in items(b, 0)]


def test_a_completion_that_stands_twice_is_taught_once_and_an_unscored_one_not_at_all(tiny_llama, bench):
    b = bench("ric", tiny_llama, "completions=0")
    example = b.examples[0]
    example.answers = [example.answers[0], example.answers[0], type(example.answers[0])([5, 6], {})]
    assert len(b.learner.item(0, 0).branches) == 1
    example.answers = example.answers[2:]
    assert len(type(b.learner)(b.examples, b.config, ["brevity", "cheer"])) == len(b.examples) - 1


def test_statistics_are_the_training_parts_and_come_back_with_the_policy(quick, scored_rows):
    folder = quick(method="ric")
    described = read_json(folder / "policy.json")
    policy = load_policy(folder)
    assert described["renderer"].keys() == {"style", "snap", "centre", "spread"}
    assert policy.renderer.to_dict() == described["renderer"]
    rows = split_rows(read_rows(scored_rows), seed=0, validation=0.1, test=0.1).train
    for objective in policy.objectives:
        values = [objective.normalise(each.scores[objective.name]) for row in rows for each in row.completions]
        assert policy.renderer.centre[objective.name] == pytest.approx(statistics.mean(values))
        assert policy.renderer.spread[objective.name] == pytest.approx(statistics.pstdev(values))


def test_weights_ask_for_r_of_the_paper_between_the_smallest_and_the_largest_value(quick):
    policy = load_policy(quick(method="ric"))
    low, high = policy.weight_map.low, policy.weight_map.high
    assert low == {"brevity": 0.16, "cheer": 0.0} and high == {"brevity": 0.84, "cheer": 1.0}
    answer = policy.generate(["What is tea?"], weights={"brevity": 0.6, "cheer": 0.4}, max_new_tokens=1)[0]
    norm = math.hypot(0.6, 0.4)
    assert answer.profile == pytest.approx({"brevity": 0.6 / norm * 0.68 + 0.16, "cheer": 0.4 / norm})
    given = policy.generate(["What is tea?"], condition={"cheer": 0.9}, max_new_tokens=1)[0]
    assert given.profile == {"cheer": 0.9} and policy.takes_profile and not policy.has_head
    assert policy.generate(["What is tea?"], max_new_tokens=1)[0].profile is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"centre": {"brevity": 0.5}}, "centre: no value for cheer"),
        ({"spread": {"brevity": 0.2, "cheer": 0.0}}, "standard deviations must be above 0"),
        ({"style": "scores"}, "centre and spread belong to the style ric"),
        ({"middle": 1}, "unknown key 'middle'"),
    ],
)
def test_a_broken_renderer_is_told(quick, change, message):
    from paretune.files import write_json

    folder = quick(method="ric")
    described = read_json(folder / "policy.json")
    described["renderer"] |= change
    del described["digest"]
    write_json(folder / "policy.json", described)
    with pytest.raises(InputError, match=message):
        load_policy(folder)


def test_training_goes_on_with_the_same_statistics(quick, tmp_path):
    from paretune.methods import train

    folder = quick(method="ric")
    data = read_json(folder / "policy.json")["data"]["path"]
    train("ric", data, None, tmp_path / "on", start=folder, settings=["epochs=1", "lr=1e-4"])
    one, two = load_policy(folder), load_policy(tmp_path / "on")
    assert one.renderer.to_dict() == two.renderer.to_dict() and one.weight_map == two.weight_map


def test_settings(quick):
    with pytest.raises(InputError, match="field 'completions': must be 0 or more"):
        quick("p", "completions=-1", method="ric")
