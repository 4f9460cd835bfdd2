"""Steering: values under themselves, and the best completion of a direction under the direction."""

from __future__ import annotations

import json
import math
import random

import pytest

from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods import train
from paretune.methods.conditioned import best_under, drawn_weights
from paretune.policy import load_policy


def items(bench, epoch=0):
    return [bench.learner.item(i, epoch) for i in range(len(bench.examples))]


def test_values_teach_completions_under_their_own_values(tiny_model, bench):
    b = bench("steer", tiny_model, "completions=3")
    nll = tokens = 0.0
    for example in b.examples:
        for completion in example.row.completions:
            nll -= b.logp(b.module.causal, example, completion.text, b.profile(example, completion.text))
            tokens += len(b.renderer.completion(completion.text))
    assert b.batch(items(b))["loss"] == pytest.approx(nll / tokens, abs=1e-9)


def directions(b, example, epoch):
    """The weights drawn for a row, and the text that has the highest sum of weighted values under each."""
    draw = random.Random(f"{b.config.seed}:{epoch}:{example.row.id}:direction")
    for _ in range(b.config.completions):
        drawn = [abs(draw.gauss(0, 1)) for _ in b.learner.names]
        weights = {name: value / sum(drawn) for name, value in zip(b.learner.names, drawn, strict=True)}
        texts = [each.text for each in example.row.completions]
        yield weights, max(texts, key=lambda text: sum(weights[k] * v for k, v in b.profile(example, text).items()))


def test_direction_teaches_the_best_completion_under_the_direction(tiny_model, bench):
    b = bench("steer", tiny_model, "condition=direction", "completions=3")
    nll = tokens = 0.0
    winners = set()
    for example in b.examples:
        seen = {}
        for weights, text in directions(b, example, 0):
            seen[b.renderer.profile_text(weights)] = (weights, text)
            winners.add(text)
        for weights, text in seen.values():
            nll -= b.logp(b.module.causal, example, text, weights)
            tokens += len(b.renderer.completion(text))
    assert b.batch(items(b))["loss"] == pytest.approx(nll / tokens, abs=1e-9)
    assert len(winners) > len(b.examples)  # the direction decides, not the prompt alone


def test_directions_are_uniform_on_the_orthant_and_weights_sum_to_one():
    draw = random.Random(0)
    drawn = [drawn_weights(["a", "b"], draw) for _ in range(4000)]
    assert all(sum(each.values()) == pytest.approx(1) and min(each.values()) >= 0 for each in drawn)
    angles = [math.atan2(each["b"], each["a"]) / (math.pi / 2) for each in drawn]
    assert sum(angles) / len(angles) == pytest.approx(0.5, abs=0.02)
    assert sum(angle < 0.25 for angle in angles) / len(angles) == pytest.approx(0.25, abs=0.03)


def test_the_best_completion_is_the_one_of_the_largest_weighted_value(tiny_llama, bench):
    b = bench("steer", tiny_llama, "condition=direction")
    for example in b.examples:
        for name in b.learner.names:
            weights = {each: float(each == name) for each in b.learner.names}
            chosen = example.answers[best_under(example, weights)].profile[name]
            assert chosen == max(each.profile[name] for each in example.answers)


def test_rows_without_a_completion_that_has_all_scores_are_left_out(tiny_llama, bench):
    b = bench("steer", tiny_llama, "condition=direction")
    for each in b.examples[0].answers:
        del each.profile["cheer"]
    assert len(type(b.learner)(b.examples, b.config, b.learner.names)) == len(b.examples) - 1


@pytest.mark.parametrize(("method", "settings"), [("steer", ("condition=direction",)), ("pro", ("head.width=16",))])
def test_rows_that_teach_nothing_are_counted_and_nothing_at_all_is_refused(
    quick, scored_rows, tmp_path, method, settings
):
    rows = [json.loads(line) for line in scored_rows.read_text().splitlines()]
    data = tmp_path / "apart.jsonl"

    def write(apart):
        for at, row in enumerate(rows[:apart]):
            for each in row["completions"]:
                each["scores"].pop(("brevity", "cheer")[at % 2], None)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(12)
    metrics = read_json(quick("some", *settings, method=method, data=data) / "metrics.json")
    assert 0 < metrics["dropped"]["without_the_scores"] <= 12 and metrics["steps"] > 0
    write(len(rows))
    with pytest.raises(InputError, match=rf"apart.jsonl: no row has a completion with the scores that '{method}'"):
        quick("none", *settings, method=method, data=data)
    assert not (tmp_path / "none").exists()


def test_the_condition_decides_text_and_rule(quick):
    values = load_policy(quick("values", method="steer"))
    direction = load_policy(quick("direction", "condition=direction", method="steer"))
    assert (values.renderer.style, values.weight_map.rule) == ("scores", "profile")
    assert (direction.renderer.style, direction.weight_map.rule) == ("weights", "direction")
    weights = {"brevity": 0.25, "cheer": 0.75}
    answer = direction.generate(["What is tea?"], weights=weights, max_new_tokens=1)[0]
    assert answer.profile == weights
    assert direction.renderer.profile_text(weights) == "\nWhat counts: brevity 25%, cheer 75%"
    assert "train_prompts" in direction.metadata and not direction.has_head


def test_a_profile_of_values_becomes_weights_where_weights_condition(quick):
    policy = load_policy(quick("direction", "condition=direction", method="steer"))
    own = math.exp(0.9 / 0.25) / (math.exp(0.9 / 0.25) + math.exp(0.5 / 0.25))
    answer = policy.generate(["What is tea?"], condition={"brevity": 0.5, "cheer": 0.9}, max_new_tokens=1)[0]
    assert answer.profile == pytest.approx({"brevity": 1 - own, "cheer": own})
    equal = policy.generate(["What is tea?"], condition="ones", max_new_tokens=1)[0]
    assert equal.profile == {"brevity": 0.5, "cheer": 0.5}
    pinned = policy.generate(["What is tea?"], condition="ones", pins={"cheer": 0.8}, max_new_tokens=1)[0]
    assert pinned.profile == pytest.approx({"brevity": 0.2, "cheer": 0.8})
    with pytest.raises(InputError, match=r"weights, which sum to 1 at most; found a sum of 1\.5"):
        policy.generate(["What is tea?"], pins={"cheer": 0.8, "brevity": 0.7}, max_new_tokens=1)
    with pytest.raises(InputError, match=r"all weights are pinned, and they sum to 0\.5"):
        policy.generate(["What is tea?"], pins={"cheer": 0.3, "brevity": 0.2}, max_new_tokens=1)


def test_training_goes_on_under_the_same_condition(quick, tmp_path):
    folder = quick("direction", "condition=direction", method="steer")
    data = read_json(folder / "policy.json")["data"]["path"]
    with pytest.raises(InputError, match="was trained with condition=direction, which cannot change; found values"):
        train("steer", data, None, tmp_path / "on", start=folder, settings=["condition=values"])
    train("steer", data, None, tmp_path / "on", start=folder, settings=["lr=1e-4"])
    assert load_policy(tmp_path / "on").weight_map == load_policy(folder).weight_map


def test_settings(quick):
    with pytest.raises(InputError, match="Did you mean 'direction'"):
        quick("p", "condition=directions", method="steer")
    with pytest.raises(InputError, match="field 'completions': must be at least 1"):
        quick("p", "completions=0", method="steer")
    assert read_json(quick("p", "completions=1", method="steer") / "metrics.json")["control_accuracy_validation"] >= 0
