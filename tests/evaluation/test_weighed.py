"""Policies that are conditioned on weights: what is asked of them are weights, and the report says so."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from evaluation import fakes
from paretune.bootstrap import Bootstrap
from paretune.evaluation import evaluate
from paretune.evaluation.conditions import in_terms, oracle_requests
from paretune.evaluation.control import Step, obedience
from paretune.evaluation.scoring import Scored
from paretune.evaluation.sweeps import asks_for
from paretune.policy.weights import WeightMap
from paretune.profile import Profile

FAST: dict[str, Any] = {"bootstrap": 20, "control_prompts": 3, "max_prompts": 6}


@dataclass
class Weighing(fakes.FakePolicy):
    """Senses weights: those that stand for the right profile. Its answer spells what it was given."""

    method: str = "pro"
    takes_weights: bool = True
    conditioned_on_weights: bool = True

    def request(self, profile: Profile, *, values: bool = False) -> Profile:
        return WeightMap("direction").request(profile, values=values)

    def sense(self, prompts: Any, pins: Any = None, **_: Any) -> list[Profile]:
        return [self.request(fakes.right_profile(prompt), values=True) for prompt in prompts]


def softmax(*values: float) -> list[float]:
    """By hand, at the temperature of a quarter."""
    parts = [math.exp(value / 0.25) for value in values]
    return [part / sum(parts) for part in parts]


def test_targets_become_weights_and_an_incomplete_one_has_none() -> None:
    policy = Weighing(fakes.obeys)
    found = in_terms(policy, [{"warm": 0.75, "short": 0.25}, {"warm": 0.6, "short": 0.4}, {"warm": 0.9}, {}])
    assert list(found[0].values()) == pytest.approx(softmax(0.75, 0.25))
    assert list(found[1].values()) == pytest.approx(softmax(0.6, 0.4)), "values that sum to one are values still"
    assert found[2:] == [{}, {}]
    assert in_terms(fakes.FakePolicy(fakes.obeys), [{"warm": 0.9}]) == [{"warm": 0.9}]


def test_an_open_target_keeps_the_sensed_weight_and_all_sum_to_one() -> None:
    policy = Weighing(fakes.obeys, objectives=[*fakes.objectives(), *fakes.objectives()[:1]])
    sensed = {"warm": 0.5, "short": 0.2, "kind": 0.3}
    (found,) = oracle_requests(policy, [{"warm": 0.8, "short": 0.3}], [sensed])
    assert found["kind"] == 0.3 and math.fsum(found.values()) == pytest.approx(1)
    assert [found["warm"], found["short"]] == pytest.approx([0.7 * each for each in softmax(0.8, 0.3)])
    assert policy.request(found) == found, "they go in as they are, and through no softmax again"
    assert oracle_requests(policy, [{}], [sensed]) == [sensed]
    assert oracle_requests(fakes.FakePolicy(fakes.obeys), [{"warm": 0.8}], [sensed]) == [{**sensed, "warm": 0.8}]


def test_a_requested_weight_is_not_held_against_an_obtained_value() -> None:
    def step(requested: float) -> Step:
        values = np.array([[requested / 2], [requested / 4]])
        return Step("warm", requested, Scored([], [], [], values))

    steps, bootstrap = [step(value) for value in (0.1, 0.5, 0.9)], Bootstrap(20, 0)
    told = obedience(steps, fakes.objectives()[:1], bootstrap, weights=True)["warm"]
    assert told["mae"]["value"] is None and "different units" in told["mae"]["why"]
    assert told["spearman_within"]["value"] == 1 and len(told["curve"]) == 3
    plain = obedience(steps, fakes.objectives()[:1], bootstrap)["warm"]
    assert plain["mae"]["value"] == pytest.approx(np.mean([0.05, 0.075, 0.25, 0.375, 0.45, 0.675]))


def test_it_is_asked_for_weights_and_for_no_profile_of_values() -> None:
    notes: list[str] = []
    asks = asks_for(Weighing(fakes.obeys), [{"warm": 1.0, "short": 0.0}], [{"warm": 0.9}], notes)
    assert [each.kind for each in asks] == ["weights", "weights"] and "--weights" in notes[0]


def test_the_whole_run_says_what_it_compared(world: Any) -> None:
    data = world.rows
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    for row in rows[::2]:
        del row["wanted"]
        for completion in row["completions"]:
            completion["scores"]["short"] = None
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    seen: list[tuple[Profile, Profile]] = []

    class Spied(Weighing):
        def loglik(self, prompts: Any, texts: Any, profiles: Any, **more: Any) -> list[float]:
            seen.extend(zip(map(fakes.right_profile, prompts), profiles, strict=True))
            return super().loglik(prompts, texts, profiles, **more)

    folder = world.add(Spied(fakes.obeys))
    told = evaluate([folder], data, world.path / "out", weights="grid", **FAST | {"max_prompts": 20})
    own = told["policies"]["policy"]
    assert own["conditioned_on"] == "weights" and any("weights, which sum to one" in note for note in own["notes"])
    lines = [json.loads(line) for line in (world.path / "out" / "answers.jsonl").read_text().splitlines()]
    oracle = [line for line in lines if line["condition"] == "oracle"]
    assert any(len(line["target"]) == 1 for line in oracle)
    assert all(math.fsum(line["profile"].values()) == pytest.approx(1) for line in oracle)
    assert seen and all(math.fsum(given.values()) == pytest.approx(1) for _, given in seen)
    page = (world.path / "out" / "report.html").read_text()
    assert "obedience is a curve that rises" in page and "perfect obedience" not in page
    assert all(each["mae"]["value"] is None for each in own["control"].values())
    assert own["head"]["warm"]["head"]["r2"]["value"] == pytest.approx(1), "of complete targets it senses every one"


def test_profiles_that_read_the_same_as_weights_tell_nothing(world: Any) -> None:
    from types import SimpleNamespace

    from paretune.evaluation.control import control_accuracy
    from paretune.progress import NO_PROGRESS

    def pair(*values: tuple[float, float]) -> Any:
        mine, theirs = (dict(zip(fakes.NAMES, each, strict=True)) for each in values)
        row = SimpleNamespace(prompt=[{"role": "user", "content": f"{values}"}])
        texts = [SimpleNamespace(text=fakes.spelled(each)) for each in (mine, theirs)]
        return SimpleNamespace(row=row, chosen=texts[0], rejected=texts[1], target=mine, rejected_profile=theirs)

    # the second pair's values differ, by as much in both objectives: the same weights
    pairs = [pair((0.9, 0.1), (0.2, 0.8)), pair((0.9, 0.8), (0.4, 0.3))]
    found = control_accuracy(Weighing(fakes.obeys), pairs, fakes.NAMES, Bootstrap(20, 0), seed=0, progress=NO_PROGRESS)
    assert found["n"] == 1 and found["left_out"] == 1
