"""Weights and profiles: how they are written, what is refused, what each policy is asked, and what the figures are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation import fakes
from paretune.bootstrap import Bootstrap
from paretune.errors import InputError
from paretune.evaluation import evaluate
from paretune.evaluation.sweeps import asks_for, inner_product, lattice, read_profiles, read_weights

FAST: dict[str, Any] = {"bootstrap": 50, "control_prompts": 0}


def test_the_lattice_by_hand() -> None:
    assert lattice(["a"]) == [{"a": 1.0}]
    assert [each["b"] for each in lattice(["a", "b"])] == [0, 0.25, 0.5, 0.75, 1]
    third = 1 / 3
    assert [list(each.values()) for each in lattice(["a", "b", "c"])] == [
        [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5], [third, third, third],
    ]  # fmt: skip
    assert len(lattice("abcde")) == 5 + 10 + 1
    for m in range(1, 6):
        assert all(sum(each.values()) == pytest.approx(1) for each in lattice("abcde"[:m]))


def test_weights_are_read_from_text_and_mappings() -> None:
    assert read_weights("grid", ["a"]) == ["grid"]
    assert read_weights(["a=.25,b=.75", {"b": 1}], ["a", "b"]) == [{"a": 0.25, "b": 0.75}, {"b": 1.0}]
    assert read_weights(None, ["a"]) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("a=.5,b=.4", "must sum to 1, found a sum of 0.9; in the same proportions: a=0.556, b=0.444"),
        ("a=1.5,b=-.5", "weight of 'b' must be 0 or more"),
        ("a=1,c=0", "unknown objective 'c'"),
        ("a=0,b=0", "must sum to 1"),
        ("a=nan,b=1", "written name=value"),
        ("gird", "written name=value"),
        ({"a": float("inf")}, "finite number"),
        ({}, "must sum to 1"),
    ],
)
def test_bad_weights_are_refused(asked: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_weights(asked, ["a", "b"])


def test_profiles_are_read_from_text_mappings_and_files(tmp_path: Path) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    one.write_text('{"a": 0.5}')
    many.write_text('[{"a": 0.1}, {"b": 0.2}]')
    assert read_profiles(["a=.9,b=.1", {"b": 1}, str(one), many], ["a", "b"]) == [
        {"a": 0.9, "b": 0.1}, {"b": 1.0}, {"a": 0.5}, {"a": 0.1}, {"b": 0.2},
    ]  # fmt: skip
    for text, message in (
        ('{"a": 2}', r"bad.json: .*\[0, 1\]"),
        ("{", "is not JSON"),
        ('["a=.5"]', "bad.json"),
        ("[{}]", "names no objective"),
        ("[]", "holds no profile"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(InputError, match=message):
            read_profiles(tmp_path / "bad.json", ["a"])
    with pytest.raises(InputError, match="no such file"):
        read_profiles("a9", ["a"])
    with pytest.raises(InputError, match="unknown objective 'z'"):
        read_profiles("z=.5", ["a"])


def test_a_policy_is_asked_what_it_takes_and_each_point_once() -> None:
    notes: list[str] = []
    policy = fakes.FakePolicy(fakes.obeys, takes_weights=True)
    asks = asks_for(policy, ["grid", {"warm": 0.5, "short": 0.5}, {"warm": 0.9, "short": 0.1}], [{"warm": 0.9}], notes)
    assert [ask.name for ask in asks] == [
        "warm 1", "warm .75 + short .25", "warm .5 + short .5", "warm .25 + short .75", "short 1",
        "warm .9 + short .1", "warm = .9",
    ]  # fmt: skip
    assert [ask.kind for ask in asks] == ["weights"] * 6 + ["profile"]
    assert asks[0].asked == {"warm": 1.0, "short": 0.0} and notes == []


def test_the_centre_is_always_asked_and_other_objectives_are_told() -> None:
    notes: list[str] = []
    policy = fakes.FakePolicy(fakes.obeys, takes_weights=True)
    asks = asks_for(policy, [{"warm": 1.0}, {"joy": 1.0}], [], notes)
    assert [ask.name for ask in asks] == ["warm 1", "warm .5 + short .5"]
    assert notes == ["The weights joy=1 were not asked of it: it has no objective 'joy'."]
    assert asks_for(policy, [{"warm": 1.0, "joy": 0.0}], [], notes)[0].name == "warm 1" and len(notes) == 1


def test_names_that_round_alike_stay_apart() -> None:
    policy = fakes.FakePolicy(fakes.obeys, takes_weights=True)
    asks = asks_for(policy, [{"warm": 0.501, "short": 0.499}, {"warm": 0.502, "short": 0.498}], [], [])
    assert len({ask.name for ask in asks}) == len(asks) == 3


def test_inner_products_by_hand() -> None:
    values = np.array([[0.5, 1.0], [0.1, 0.0], [np.nan, 0.2]])
    found = inner_product(values, ["a", "b"], {"a": 0.2, "b": 0.8}, Bootstrap(20))
    assert found.value == pytest.approx((0.9 + 0.02) / 2) and found.n == 2
    # what is not weighed need not be scored
    assert inner_product(values, ["a", "b"], {"a": 0.0, "b": 1.0}, Bootstrap(20)).value == pytest.approx(0.4)
    lost = inner_product(values, ["a", "b"], {"c": 1.0}, Bootstrap(20))
    assert lost.value is None and "'c' is weighed" in str(lost.why)


def test_a_sweep_over_weights_of_a_policy_without_a_head(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.obeys, has_head=False, takes_weights=True, method="soup")
    own = evaluate([world.add(policy)], world.rows, world.path / "out", weights="grid", **FAST)["policies"]["policy"]
    assert policy.calls == ["none", "weights"]
    assert [point["name"] for point in own["sweep"]][2] == "warm .5 + short .5"
    for point in own["sweep"]:
        # the fake's answers score exactly the weights: sum_i w_i * w_i
        assert point["inner_product"]["value"] == pytest.approx(sum(w * w for w in point["asked"].values()))
        assert point["distance_to_asked"] is None
    assert own["natural"] == "centre" and list(own["conditions"]) == ["none", "centre"]
    assert own["conditions"]["centre"]["scores"] == own["sweep"][2]["scores"]
    front = own["front_set"]
    assert front["of"] == "sweep" and len(front["points"]) == 5  # the natural point is the middle of the sweep
    # a staircase of (0, 1) (.25, .75) (.5, .5) (.75, .25) (1, 0): .25 * .75 + .25 * .5 + .25 * .25
    assert front["hypervolume"]["value"] == pytest.approx(0.375)
    assert front["sparsity"] == pytest.approx(0.125) and front["spacing"] == pytest.approx(0)
    assert front["reference"] == {"warm": 0, "short": 0} and "0 in every objective" in front["reference_rule"]
    lines = [json.loads(line) for line in (world.path / "out" / "answers.jsonl").read_text().splitlines()]
    swept = [line for line in lines if line["condition"] == "sweep"]
    assert len(swept) == 4 * own["test"]["prompts"] and swept[0]["weights"] == {"warm": 1.0, "short": 0.0}


def test_a_sweep_over_profiles(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.obeys, takes_profile=True)
    asked = ["warm=.9", "warm=.25,short=.75"]
    own = evaluate([world.add(policy)], world.rows, world.path / "out", profiles=asked, **FAST)["policies"]["policy"]
    assert policy.calls == ["sensed", "profiles", "sensed"], "one call for a kind of question"
    partial, whole = own["sweep"]
    assert partial["scores"]["warm"]["value"] == pytest.approx(0.9)
    assert partial["scores"]["short"]["value"] == pytest.approx(
        own["conditions"]["sensed"]["scores"]["short"]["value"]
    ), "what a profile leaves open is sensed"
    assert partial["distance_to_asked"]["value"] == pytest.approx(0) and partial["inner_product"] is None
    assert whole["scores"]["short"]["value"] == pytest.approx(0.75)
    assert own["natural"] == "sensed" and len(own["front_set"]["points"]) == 3


def test_a_profile_goes_as_the_condition_where_there_is_no_head(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.obeys, has_head=False, takes_profile=True)
    own = evaluate([world.add(policy)], world.rows, world.path / "out", profiles={"warm": 0.3, "short": 0.2}, **FAST)
    point = own["policies"]["policy"]["sweep"][0]
    assert policy.calls == ["none", "profiles"] and point["distance_to_asked"]["value"] == pytest.approx(0)


def test_a_policy_that_takes_neither_says_so(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.ignores, has_head=False)
    run = evaluate([world.add(policy)], world.rows, world.path / "out", weights="grid", profiles="warm=.9", **FAST)
    own = run["policies"]["policy"]
    assert own["sweep"] == [] and policy.calls == ["none"] and own["natural"] == "none"
    assert any("takes no weights" in note for note in own["notes"])
    assert any("takes no profile" in note for note in own["notes"])
    front = own["front_set"]
    assert front["of"] == "natural" and front["sparsity"] is None and "fewer than two" in front["points_why"]


def test_a_reference_moves_the_hypervolume(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.ignores, has_head=False))
    run = evaluate([folder], world.rows, world.path / "out", reference={"warm": 0.3}, **FAST)
    front = run["policies"]["policy"]["front_set"]
    assert front["hypervolume"]["value"] == pytest.approx(0.2 * 0.5)
    assert front["reference"] == {"warm": 0.3, "short": 0.0} and front["reference_rule"].startswith("given")
    assert run["settings"]["reference"] == ["warm=0.3"] and "--reference warm=0.3" in run["command"]


def test_a_sweep_without_any_score_is_undefined_with_a_reason(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.obeys, takes_weights=True, objectives=fakes.objectives(("column:warm", "")))
    run = evaluate([world.add(policy)], world.rows, world.path / "out", weights="grid", profiles="warm=.9", **FAST)
    own = run["policies"]["policy"]
    assert own["front_set"] is None and len(own["sweep"]) == 6
    assert "is weighed, but not scored here" in own["sweep"][0]["inner_product"]["why"]
    assert own["sweep"][5]["distance_to_asked"]["value"] is None and own["sweep"][0]["multi_win"]["value"] is None
    assert "No objective could be scored" in (world.path / "out" / "card-policy.md").read_text()


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"weights": "warm=.5,short=.6"}, "must sum to 1"),
        ({"weights": "warm=2,short=-1"}, "0 or more"),
        ({"weights": ["grid", "wram=1"]}, "unknown objective 'wram'. Did you mean 'warm'"),
        ({"profiles": "warm=1.5"}, r"\[0, 1\]"),
        ({"profiles": "nowhere.json"}, "no such file"),
        ({"reference": {"wram": 0}}, "no objective 'wram'. Did you mean 'warm'"),
        ({"reference": {"warm": 1.0}}, "must lie below 1"),
        ({"reference": [0, 0]}, "written name=value"),
        ({"reference": {"warm": float("nan")}}, "finite number"),
    ],
)
def test_wrong_wishes_are_told_before_a_model_is_loaded(
    world: Any, monkeypatch: pytest.MonkeyPatch, wish: dict[str, Any], message: str
) -> None:
    import paretune.policy

    folder = world.add(fakes.FakePolicy(fakes.obeys))
    monkeypatch.setattr(paretune.policy, "load_policy", lambda folder: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=message):
        evaluate([folder], world.rows, world.path / "out", **wish, **FAST)
    assert not (world.path / "out").exists()


def test_the_command_repeats_the_wishes(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.obeys, takes_weights=True, takes_profile=True)
    run = evaluate(
        [world.add(policy)],
        world.rows,
        world.path / "out",
        weights=["grid", {"warm": 0.9, "short": 0.1}],
        profiles={"warm": 0.5},
        **FAST,
    )
    assert "--weights grid --weights warm=0.9,short=0.1 --profile warm=0.5" in run["command"]
    assert run["settings"]["weights"] == ["grid", "warm=0.9,short=0.1"]
