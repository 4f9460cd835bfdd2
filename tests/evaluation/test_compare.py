"""Several policies: figures worked by hand, paired tests and their sentences, what cannot be compared, what leaks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluation import fakes
from paretune.bootstrap import Estimate, undefined
from paretune.data import prompt_key, read_rows, split_rows
from paretune.errors import InputError
from paretune.evaluation import describe, evaluate
from paretune.evaluation.claims import difference_claim, summary_claims
from paretune.evaluation.output import HEADER, methods_table
from paretune.profile import Objective, Scale

FAST: dict[str, Any] = {"bootstrap": 200, "control_prompts": 0, "conditions": ["sensed", "none"]}


def says(warm: float, short: float) -> Callable[..., str]:
    """An answer with these scores, whatever is asked."""
    return lambda prompt, profile: fakes.spelled({"warm": warm, "short": short})


def plain(answer: Callable[..., str], **more: Any) -> fakes.FakePolicy:
    return fakes.FakePolicy(answer, has_head=False, method="dpo", **more)


def compared(world: Any, *policies: fakes.FakePolicy, **wishes: Any) -> dict[str, Any]:
    folders = [world.add(policy, f"p{at}") for at, policy in enumerate(policies)]
    metrics: dict[str, Any] = evaluate(folders, world.rows, world.path / "out", **FAST | wishes)
    return metrics


def test_the_figures_by_hand(world: Any) -> None:
    metrics = compared(world, plain(says(0.8, 0.3)), plain(says(0.4, 0.6)))
    both = metrics["comparison"]
    first, second = both["policies"].values()
    test = split_rows(read_rows(world.rows), **fakes.SPLIT).test
    right = np.array([list(fakes.right_profile(row.prompt).values()) for row in test])
    for own, at in ((first, [0.8, 0.3]), (second, [0.4, 0.6])):
        gap = np.array(at) - right
        won = np.where(np.abs(gap) < 0.0101, 0.5, gap > 0)
        assert own["multi_win"]["value"] == pytest.approx(won.mean())
        assert own["win_only"]["value"] == pytest.approx((won == 1).mean())
        assert own["distance"]["value"] == pytest.approx(np.abs(gap).mean())
        assert own["hypervolume"]["value"] == pytest.approx(at[0] * at[1])
        assert own["words"]["value"] == 2 and own["points"] == 1
        assert own["inner_product"] is None and own["sparsity"] is None
    (duel,) = both["head_to_head"]
    assert (duel["first"], duel["second"]) == ("p0", "p1")
    assert duel["objectives"]["warm"]["win"]["value"] == duel["objectives"]["short"]["loss"]["value"] == 1
    assert duel["multi_win"]["value"] == 0.5 and duel["joint"]["loss"]["value"] == 1
    # the union of 0 - .8 x 0 - .3 and 0 - .4 x 0 - .6
    assert both["front"]["hypervolume"]["value"] == pytest.approx(0.8 * 0.3 + 0.4 * 0.3)
    assert [point["on_front"] for point in both["front"]["points"]] == [True, True]
    assert both["conditions"] == {"p0": "none", "p1": "none"} and both["notes"] == []
    json.dumps(metrics, allow_nan=False)


def test_a_difference_that_is_there_is_shown_for_the_better_one(world: Any) -> None:
    both = compared(world, plain(says(0.2, 0.2)), plain(says(0.9, 0.9)))["comparison"]
    tests = {each["figure"]: each for each in both["tests"]}
    assert set(tests) == {"multi_win", "hypervolume", "distance"} and both["tests_of"]["inner_product"] == 0
    assert tests["multi_win"]["significant"] and tests["multi_win"]["difference"]["high"] < 0
    assert tests["multi_win"]["claim"].startswith("p1's mean win rate is higher than p0's by 0.")
    assert tests["hypervolume"]["difference"]["value"] == pytest.approx(0.04 - 0.81)
    assert tests["hypervolume"]["p"] == pytest.approx(2 / 201)
    assert any(claim.startswith("p1 has the highest mean win rate") for claim in both["claims"])
    assert any("the lead over p0 is shown" in claim for claim in both["claims"])


def test_policies_that_answer_alike_are_not_told_apart(world: Any) -> None:
    both = compared(world, plain(says(0.5, 0.5)), plain(says(0.5, 0.5)), plain(says(0.5, 0.5)))["comparison"]
    assert len(both["tests"]) == 9 and both["tests_of"] == {
        "multi_win": 3, "hypervolume": 3, "distance": 3, "inner_product": 0,
    }  # fmt: skip
    for each in both["tests"]:
        assert each["p_adjusted"] == 1 and not each["significant"]
        assert each["claim"].startswith("No difference is shown between p") and "0.000 [0.000, 0.000]" in each["claim"]
        assert each["claim"].endswith("p = 1.00 after Holm's correction over 3 tests.")
    assert both["claims"][0].startswith("All policies have the same mean win rate")
    assert all(duel["joint"]["tie"]["value"] == 1 for duel in both["head_to_head"])
    assert all(own["points_why"] for own in both["policies"].values())


def test_many_tests_of_the_hypervolume_have_resamples_enough(world: Any) -> None:
    policies = [plain(says(at / 10, at / 10)) for at in (1, 3, 5, 7, 9)]
    both = compared(world, *policies, bootstrap=20)["comparison"]
    hyper = [each for each in both["tests"] if each["figure"] == "hypervolume"]
    assert len(hyper) == 10 and all(each["significant"] for each in hyper)
    assert max(each["p_adjusted"] for each in hyper) == pytest.approx(10 * 2 / 1001)


def test_sweeps_count_for_the_fronts_and_the_inner_product(world: Any) -> None:
    def halves(prompt: Any, profile: Any) -> str:
        return fakes.spelled({name: value / 2 for name, value in (profile or {"warm": 0.5, "short": 0.5}).items()})

    policies = [plain(fakes.obeys, takes_weights=True), plain(halves, takes_weights=True), plain(says(0.5, 0.5))]
    metrics = compared(world, *policies, weights="grid", bootstrap=50)
    both = metrics["comparison"]
    good, bad, one = both["policies"].values()
    assert (good["points"], bad["points"], one["points"]) == (5, 5, 1)
    # the mean of sum_i w_i^2 over the grid: (1 + .625 + .5 + .625 + 1) / 5
    assert good["inner_product"]["value"] == pytest.approx(0.75)
    assert bad["inner_product"]["value"] == pytest.approx(0.375)
    assert one["inner_product"] is None
    assert good["hypervolume"]["value"] == pytest.approx(0.375)
    assert bad["hypervolume"]["value"] == pytest.approx(0.375 / 4)
    assert good["condition"] == "centre" and one["condition"] == "none"
    (test,) = [each for each in both["tests"] if each["figure"] == "inner_product"]
    assert test["difference"]["value"] == pytest.approx(0.375) and test["significant"]
    points = both["front"]["points"]
    assert [point["kind"] for point in points] == (["natural"] + ["weights"] * 4) * 2 + ["natural"]
    assert [point["name"] for point in points if point["kind"] == "natural"] == ["p0", "p1", "p2"]
    assert sum(point["on_front"] for point in points) == 6, "five of the first, and the same middle of the third"
    assert points[1]["example"]["answer"] == "warm=1.000 short=0.000"
    assert len({point["example"]["prompt"] for point in points}) == 1
    assert any("takes no weights" in note for note in metrics["policies"]["p2"]["notes"])
    (note,) = both["notes"]
    assert note.startswith("Hypervolumes are of different numbers of points ('p0' 5, 'p1' 5, 'p2' 1)")


def test_missing_scores_are_masked_in_pairs(world: Any) -> None:
    def gaps(prompt: Any, profile: Any) -> str:
        short = {} if prompt[-1]["content"].endswith("1") else {"short": 0.5}
        return fakes.spelled({"warm": 0.5, **short})

    both = compared(world, plain(gaps), plain(says(0.5, 0.5)))["comparison"]
    held_out = [row.text for row in split_rows(read_rows(world.rows), **fakes.SPLIT).test]
    missing = sum(text.endswith("1") for text in held_out)
    assert missing > 0 and both["front"]["prompts"] == len(held_out) - missing
    (duel,) = both["head_to_head"]
    assert duel["joint"]["tie"]["n"] == len(held_out) - missing
    assert duel["multi_win"] == {"value": 0.5, "low": 0.5, "high": 0.5, "n": len(held_out)}


def test_nothing_scored_anywhere_is_undefined_with_a_reason(world: Any) -> None:
    metrics = compared(world, plain(lambda prompt, profile: "nothing"), plain(says(0.5, 0.5)))
    both = metrics["comparison"]
    assert both["front"]["points"] == [] and "no prompt has every score" in both["front"]["hypervolume"]["why"]
    hyper = next(each for each in both["tests"] if each["figure"] == "hypervolume")
    assert hyper["p"] is None and hyper["p_adjusted"] is None and not hyper["significant"]
    assert hyper["claim"].startswith("Whether p0 and p1 differ in hypervolume cannot be told: no prompt has")
    assert all(line for line in describe(metrics))
    assert (world.path / "out" / "front.png").read_bytes().startswith(b"\x89PNG")
    json.dumps(metrics, allow_nan=False)


def test_the_table_of_methods(world: Any) -> None:
    metrics = compared(world, plain(says(0.8, 0.3), models_at_inference=3), plain(says(0.4, 0.6)))
    for at, stored in enumerate([{"seconds": 12.5, "tokens": 900, "steps": 7, "peak_memory_mib": 55.0}, None]):
        if stored:
            (world.path / f"p{at}" / "metrics.json").write_text(json.dumps(stored))
    folders = [world.path / "p0", world.path / "p1"]
    metrics = evaluate(folders, world.rows, world.path / "out", overwrite=True, **FAST)
    cost = metrics["policies"]["p0"]["cost"]
    assert (cost["train_seconds"], cost["train_tokens"], cost["train_steps"]) == (12.5, 900, 7)
    assert (cost["peak_memory_mib"], cost["models_at_inference"], cost["adapters"]) == (55.0, 3, 0)
    assert cost["tokens_per_second"] > 0 and cost["evaluate_seconds"] > 0
    assert metrics["policies"]["p1"]["cost"]["train_seconds"] is None
    (first, second) = methods_table(metrics)
    assert dict(zip(HEADER, first, strict=True))["train s"] == 12.5 and first[-1] == 3
    assert dict(zip(HEADER, second, strict=True))["train s"] is None
    told = "\n".join(describe(metrics))
    assert "Compared on" in told and "p0: answers none, multi win" in told and "models 3" in told


def other_objectives(specs: tuple[str, str] = fakes.SPECS, **scales: Scale) -> list[Objective]:
    names = dict(zip(fakes.NAMES, specs, strict=True))
    return [Objective(name, spec, scale=scales.get(name, Scale("fixed"))) for name, spec in names.items()]


def test_objectives_that_differ_are_left_out_and_told(world: Any) -> None:
    odd = plain(says(0.4, 0.6), objectives=other_objectives((fakes.SPECS[0], "lexical:brevity")))
    both = compared(world, plain(says(0.8, 0.3)), odd)["comparison"]
    assert both["objectives"] == ["warm"]
    assert both["notes"] == [
        f"Of '{name}', short is left out: not every policy scores it by the same reward." for name in ("p0", "p1")
    ]
    # alone, the front of one objective is its best point
    assert both["front"]["hypervolume"]["value"] == pytest.approx(0.8)


def test_directions_must_agree_too(world: Any) -> None:
    turned = [Objective(name, spec, "minimise", Scale("fixed", reverse=True)) for name, spec in
              zip(fakes.NAMES, fakes.SPECS, strict=True)]  # fmt: skip
    with pytest.raises(InputError, match="no objective in common"):
        compared(world, plain(says(0.8, 0.3)), plain(says(0.4, 0.6), objectives=turned))


def test_all_are_put_on_the_first_policys_scales(world: Any) -> None:
    half = plain(says(0.4, 0.6), objectives=other_objectives(warm=Scale("fixed", low=0.0, high=0.5)))
    metrics = compared(world, plain(says(0.8, 0.3)), half)
    assert metrics["policies"]["p1"]["conditions"]["none"]["scores"]["warm"]["value"] == pytest.approx(0.8)
    assert metrics["comparison"]["front"]["points"][1]["values"]["warm"] == pytest.approx(0.4)
    assert metrics["comparison"]["notes"] == [
        "'p1' was trained on another scale of warm; it is judged on that of 'p0'."
    ]


def test_no_objective_in_common_is_told_before_a_model_is_loaded(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import paretune.policy

    alien = plain(says(0.4, 0.6), objectives=other_objectives(("lexical:brevity", "lexical:length")))
    folders = [world.add(plain(says(0.8, 0.3)), "one"), world.add(alien, "two")]
    monkeypatch.setattr(paretune.policy, "load_policy", lambda folder: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=r"'one': warm=python:.*'two': warm=lexical:brevity.*--objective NAME=SPEC"):
        evaluate(folders, world.rows, world.path / "out", **FAST)


def split_by(seed: int, path: Path) -> dict[str, Any]:
    """Metadata of a policy that was trained on a split of its own."""
    parts = split_rows(read_rows(path), **fakes.SPLIT | {"seed": seed})
    stored = {"path": str(path), "split": fakes.SPLIT | {"seed": seed}, "targets": "wanted"}
    return {"data": stored, "train_prompts": [prompt_key(row.prompt) for row in parts.train]}


def test_another_split_leaks_and_is_refused(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import paretune.policy

    ours, theirs = (split_by(seed, world.rows) for seed in (0, 1))
    folders = [
        world.add(plain(says(0.8, 0.3), metadata=ours), "ours"),
        world.add(plain(says(0.4, 0.6), metadata=theirs), "theirs"),
    ]
    held_out = split_rows(read_rows(world.rows), **fakes.SPLIT).test
    leaked = sum(prompt_key(row.prompt) in theirs["train_prompts"] for row in held_out)
    with monkeypatch.context() as patch:
        patch.setattr(paretune.policy, "load_policy", lambda folder: pytest.fail("a model was loaded"))
        with pytest.raises(InputError, match=rf"of the {len(held_out)} test rows: 'theirs' on {leaked} \('row-"):
            evaluate(folders, world.rows, world.path / "out", **FAST)
    metrics = evaluate(folders, world.rows, world.path / "out", allow_overlap=True, **FAST)
    test = metrics["policies"]["ours"]["test"]
    assert test["dropped_trained_on_by_others"] == leaked and test["prompts"] == len(held_out) - leaked
    assert any(
        f"{leaked} rows were dropped because policies compared" in n for n in metrics["policies"]["ours"]["notes"]
    )
    everywhere = {*ours["train_prompts"], *theirs["train_prompts"]}
    lines = [json.loads(line) for line in (world.path / "out" / "answers.jsonl").read_text().splitlines()]
    assert not {prompt_key([{"role": "user", "content": line["prompt"][-1]["content"]}]) for line in lines} & everywhere
    assert metrics["comparison"]["same_prompts"] is False and 0 < metrics["comparison"]["prompts"] <= test["prompts"]


def test_all_rows_that_nobody_was_trained_on(world: Any) -> None:
    metadata = [split_by(seed, world.rows) for seed in (0, 1)]
    metrics = compared(world, *(plain(says(0.5, 0.5), metadata=each) for each in metadata), split="all")
    fresh = {prompt_key(row.prompt) for row in read_rows(world.rows)}
    for each in metadata:
        fresh -= set(each["train_prompts"])
    assert metrics["comparison"]["prompts"] == len(fresh) and metrics["comparison"]["same_prompts"] is True


def test_no_prompt_in_common(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import paretune.policy

    rows = read_rows(world.rows)
    parts = split_rows(rows, **fakes.SPLIT)
    # trained on all that the other one tests, and on nothing that it tests itself
    keys = {prompt_key(row.prompt) for row in parts.test}
    cut = fakes.SPLIT | {"test": 0.4, "seed": 5}
    tested = {prompt_key(row.prompt) for row in split_rows(rows, **cut).test}
    stored = {"path": str(world.rows), "split": cut, "targets": "wanted"}
    apart = plain(says(0.4, 0.6), metadata={"data": stored, "train_prompts": sorted(keys - tested)})
    folders = [
        world.add(plain(says(0.8, 0.3), metadata={"train_prompts": sorted(tested & keys)}), "one"),
        world.add(apart, "two"),
    ]
    monkeypatch.setattr(paretune.policy, "load_policy", lambda folder: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=r"no prompt is in the test sets of all policies|needs at least 2 usable"):
        evaluate(folders, world.rows, world.path / "out", allow_overlap=True, **FAST)


def test_prompts_too_long_for_one_or_another_are_told_before_a_model_is_loaded(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import paretune.policy.folder

    folders = [world.add(plain(says(0.8, 0.3)), "even"), world.add(plain(says(0.4, 0.6)), "odd")]
    _, config = fakes.unloaded()

    def lengths(folder: Path) -> tuple[Any, Any]:
        """The prompts of odd numbers are too long for the policy `even`, and the other way round."""
        renderer, _ = fakes.unloaded()
        too_long = int(folder.name == "even")
        renderer.prefix = lambda prompt: range(2**20 * (int(prompt[0]["content"].split()[1]) % 2 == too_long))
        return renderer, config

    monkeypatch.setattr(paretune.policy.folder, "read_renderer", lengths)
    monkeypatch.setattr(paretune.policy, "load_policy", lambda folder: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=r"no prompt is in the test sets of all policies \('even' \d+, 'odd' \d+"):
        evaluate(folders, world.rows, world.path / "out", **FAST)


def test_one_common_prompt_tells_nothing_apart(world: Any) -> None:
    data = fakes.write_data(world.path / "ten.jsonl", rows=10)
    rows = read_rows(data)

    def tested(seed: int) -> set[str]:
        return {row.id for row in split_rows(rows, **fakes.SPLIT | {"seed": seed, "test": 0.3}).test}

    seed = next(seed for seed in range(1, 99) if len(tested(0) & tested(seed)) == 1)
    folders = []
    for own, warm in ((0, 0.8), (seed, 0.4)):
        stored = {"path": str(data), "split": fakes.SPLIT | {"seed": own, "test": 0.3}, "targets": "wanted"}
        folders.append(world.add(plain(says(warm, 0.5), metadata={"data": stored}), f"s{own}"))
    metrics = evaluate(folders, data, world.path / "out", **FAST)
    both = metrics["comparison"]
    assert both["prompts"] == 1 and len(both["notes"]) == 2
    tests = {each["figure"]: each for each in both["tests"]}
    assert tests["multi_win"]["p"] == 1 and tests["multi_win"]["difference"]["low"] is None
    assert tests["hypervolume"]["claim"].endswith("differ in hypervolume cannot be told: there is one prompt only.")
    assert not any(each["significant"] for each in both["tests"])
    json.dumps(metrics, allow_nan=False)


UP = Estimate(0.06, 0.02, 0.1, 50)


def test_sentences_of_a_test() -> None:
    said = difference_claim("multi_win", "sga", "dpo", UP, 0.0041, 6, shown=True)
    assert said == (
        "sga's mean win rate is higher than dpo's by 0.060 [0.020, 0.100], p = .004 after Holm's correction over "
        "6 tests."
    )
    said = difference_claim("distance", "sga", "dpo", UP, 0.0004, 1, shown=True)
    assert said == "dpo's distance to the target is smaller than sga's by 0.060 [0.020, 0.100], p < .001."
    down = Estimate(-0.06, -0.1, -0.02, 50)
    said = difference_claim("distance", "sga", "dpo", down, 0.02, 1, shown=True)
    assert said.startswith("sga's distance to the target is smaller than dpo's by 0.060 [0.020, 0.100], p = .02.")
    said = difference_claim("hypervolume", "a", "b", Estimate(0.01, -0.02, 0.04, 50), 0.6, 3, shown=False)
    assert said == (
        "No difference is shown between a and b in hypervolume: 0.010 [-0.020, 0.040], p = .60 after Holm's correction "
        "over 3 tests."
    )
    assert "cannot be told: no score" in difference_claim(
        "distance", "a", "b", undefined("no score"), None, 0, shown=False
    )


def test_who_is_first() -> None:
    figures = {
        name: {key: {"value": value} for key in ("multi_win", "hypervolume")}
        | {"distance": None, "inner_product": None}
        for name, value in (("a", 0.2), ("b", 0.5), ("c", 0.4))
    }
    tests = [
        {"first": one, "second": two, "figure": "multi_win", "significant": shown}
        for (one, two), shown in zip((("a", "b"), ("a", "c"), ("b", "c")), (True, False, False), strict=True)
    ]
    first, second = summary_claims(figures, tests)
    assert first == "b has the highest mean win rate, 0.500; the lead over a is shown, that over c is not."
    assert second == "b has the highest hypervolume, 0.500."
