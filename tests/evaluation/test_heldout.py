"""Held-out rewards and the base model: gains by hand, hacking flagged, each base asked once, bad judges refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from evaluation import fakes
from paretune.bootstrap import Estimate, undefined
from paretune.data import read_rows, split_rows
from paretune.errors import InputError
from paretune.evaluation import evaluate
from paretune.evaluation.heldout import claim

FAST: dict[str, Any] = {"bootstrap": 100, "control_prompts": 0, "conditions": ["none"]}
AGREES = "warm=python:evaluation.test_heldout:agrees"
CONSTANT = "warm=python:evaluation.test_heldout:constant"


def agrees(completions: Sequence[str], **_: Any) -> list[float | None]:
    """A held-out reward that rises with `warm`, in another unit."""
    return [None if value is None else 10 * value - 3 for value in fakes.warm(completions)]


def prefers_short(completions: Sequence[str], **_: Any) -> list[float | None]:
    """A held-out reward that has nothing to do with `warm`."""
    return fakes.short(completions)


def constant(completions: Sequence[str], **_: Any) -> list[float | None]:
    """A reward that tells nothing apart."""
    return [1.0] * len(completions)


def says(warm: float, short: float) -> Any:
    return lambda prompt, profile: fakes.spelled({"warm": warm, "short": short})


def policy(warm: float, short: float = 0.5, base: Any = None, **more: Any) -> fakes.FakePolicy:
    """Answers warm / short whatever is asked; its base model .5 / .5."""
    return fakes.FakePolicy(says(warm, short), has_head=False, peft=fakes.Adapter(base or says(0.5, 0.5)), **more)


def judged(world: Any, own: fakes.FakePolicy, *judges: str) -> list[dict[str, Any]]:
    run = evaluate([world.add(own)], world.rows, world.path / "out", judge_with=judges, **FAST)
    found: list[dict[str, Any]] = run["policies"]["policy"]["held_out"]
    return found


def test_gains_in_the_datas_own_unit_by_hand(world: Any) -> None:
    (told,) = judged(world, policy(0.9), AGREES)
    values = [
        each.scores["warm"] for row in split_rows(read_rows(world.rows), **fakes.SPLIT).test for each in row.completions
    ]
    expected = 0.4 / np.std(values)
    assert told["gain_trained"]["value"] == pytest.approx(expected, rel=1e-3)
    assert told["gain_held_out"]["value"] == pytest.approx(expected, rel=1e-3), "another unit, the same gain"
    assert told["flag"] is False and told["against"] == "base model"
    assert told["claim"].startswith("The gain in warm holds under a reward that training did not use: +")
    assert (told["trained_spec"], told["judge_spec"]) == (fakes.SPECS[0], AGREES.partition("=")[2])
    assert told["unit"] == "standard deviations of the data's completions"


def test_a_gain_on_the_training_reward_alone_is_flagged(world: Any) -> None:
    (told,) = judged(world, policy(0.9, 0.4), "warm=python:evaluation.test_heldout:prefers_short")
    assert told["flag"] is True and told["gain_held_out"]["value"] < 0
    assert "a sign of reward hacking: it fell elsewhere" in told["claim"]
    page = (world.path / "out" / "card-policy.md").read_text()
    assert "a sign of reward hacking" in page


def test_a_minus_turns_the_judge_round(world: Any) -> None:
    (told,) = judged(world, policy(0.9, 0.4), "-warm=python:evaluation.test_heldout:prefers_short")
    assert told["flag"] is False and told["gain_held_out"]["value"] > 0


def test_no_gain_is_no_hacking(world: Any) -> None:
    (told,) = judged(world, policy(0.5), AGREES)
    assert told["flag"] is False and told["claim"].startswith("No gain in warm is shown")


def test_a_judge_that_tells_nothing_apart_is_undefined(world: Any) -> None:
    (told,) = judged(world, policy(0.9), CONSTANT)
    assert told["gain_held_out"]["value"] is None and "do not differ" in told["gain_held_out"]["why"]
    assert "cannot be told: the data's completions do not differ" in told["claim"]
    assert told["flag"] is False, "nothing is known, so nothing is said"


def test_without_an_adapter_the_chosen_completions_are_the_baseline(world: Any) -> None:
    own = fakes.FakePolicy(says(1.0, 0.5), has_head=False)
    (told,) = judged(world, own, AGREES)
    assert told["against"] == "chosen" and told["gain_trained"]["value"] > 0
    assert told["claim"].endswith("over the chosen completions).")


def test_a_stored_training_reward_gains_nothing_that_can_be_told(world: Any) -> None:
    own = policy(0.9, objectives=fakes.objectives(("column:warm", fakes.SPECS[1])))
    (told,) = judged(world, own, AGREES)
    assert told["gain_trained"]["why"] == "column:warm cannot score a new answer" and told["flag"] is False


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        (f"warm={fakes.SPECS[0]}", "is a reward that 'policy' was trained on.*name a reward that training did not use"),
        (f"warm= {fakes.SPECS[1]}", "is a reward that 'policy' was trained on"),
        ("wram=lexical:brevity", "no policy has an objective 'wram'. Did you mean 'warm'"),
        ("warm=lexical:brevty", "Did you mean 'brevity'|'brevity'"),
        ("warm=column:stored", "holds stored scores and cannot score a new answer"),
        ("warm", "written NAME=SPEC"),
        ("warm=python:no_such_module:f", "no Python module"),
    ],
)
def test_judges_that_cannot_be_are_refused_first(
    world: Any, monkeypatch: pytest.MonkeyPatch, judge: str, message: str
) -> None:
    import paretune.policy

    folder = world.add(policy(0.9))
    monkeypatch.setattr(paretune.policy, "load_policy", lambda folder: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=message):
        evaluate([folder], world.rows, world.path / "out", judge_with=[judge], **FAST)
    with pytest.raises(InputError, match="given twice"):
        evaluate([folder], world.rows, world.path / "out", judge_with=[AGREES, AGREES], **FAST)


def test_the_base_model_joins_the_comparison(world: Any) -> None:
    own = policy(0.9)
    run = evaluate(
        [world.add(own)], world.rows, world.path / "out", include_base=True, judge_with=[AGREES], weights="grid", **FAST
    )
    assert list(run["policies"]) == ["policy", "base"]
    base = run["policies"]["base"]
    assert (base["method"], base["folder"], base["held_out"], base["sweep"]) == ("base", None, None, [])
    assert base["conditions"]["none"]["scores"]["warm"]["value"] == pytest.approx(0.5)
    assert base["cost"]["train_seconds"] is None and base["cost"]["adapters"] == 0
    assert run["policies"]["policy"]["cost"]["adapters"] == 1
    assert own.calls == ["base", "none"], "one generation serves the comparison and the judge"
    (test,) = [each for each in run["comparison"]["tests"] if each["figure"] == "hypervolume"]
    assert (test["first"], test["second"], test["significant"]) == ("policy", "base", True)
    assert {path.name for path in (world.path / "out").glob("card-*")} == {"card-policy.md", "card-base.md"}
    assert "--judge-with" in run["command"] and "--with-base" in run["command"]


def test_each_base_model_is_asked_once(world: Any) -> None:
    own = [policy(0.9), policy(0.8), policy(0.7, base=says(0.2, 0.2))]
    own[2].base = "other/model"
    folders = [world.add(each, f"p{at}") for at, each in enumerate(own)]
    run = evaluate(folders, world.rows, world.path / "out", include_base=True, judge_with=[AGREES], **FAST)
    assert [each.calls for each in own] == [["base", "none"], ["none"], ["base", "none"]]
    assert list(run["policies"]) == ["p0", "p1", "p2", "base tiny<base>", "base model"]
    assert run["policies"]["base model"]["conditions"]["none"]["scores"]["warm"]["value"] == pytest.approx(0.2)
    gains = [run["policies"][f"p{at}"]["held_out"][0]["gain_trained"]["value"] for at in range(3)]
    assert gains[0] > gains[1] and gains[2] > gains[0]


def test_a_policy_called_base_keeps_its_name(world: Any) -> None:
    run = evaluate([world.add(policy(0.9), "base")], world.rows, world.path / "out", include_base=True, **FAST)
    assert list(run["policies"]) == ["base", "base (model)"]


def test_a_policy_without_a_base_model_says_so(world: Any) -> None:
    own = fakes.FakePolicy(says(0.9, 0.5), has_head=False)
    run = evaluate([world.add(own)], world.rows, world.path / "out", include_base=True, **FAST)
    assert run["comparison"] is None and "no adapter to switch off" in run["policies"]["policy"]["notes"][0]


UP, FLAT, DOWN = Estimate(0.5, 0.2, 0.8, 9), Estimate(0.1, -0.2, 0.4, 9), Estimate(-0.5, -0.8, -0.2, 9)
ALONE = "The gain in joy is the training reward's alone, a sign of reward hacking"


@pytest.mark.parametrize(
    ("trained", "judge", "said"),
    [
        (UP, UP, "The gain in joy holds"),
        (
            UP,
            FLAT,
            "The gain in joy is the training reward's alone, a sign of reward hacking: no gain is shown elsewhere",
        ),
        (UP, DOWN, "The gain in joy is the training reward's alone, a sign of reward hacking: it fell elsewhere"),
        (FLAT, UP, "No gain in joy is shown by the reward of training"),
        (UP, undefined("no unit"), "Whether a gain in joy holds cannot be told: no unit."),
    ],
)
def test_sentences(trained: Estimate, judge: Estimate, said: str) -> None:
    assert claim("joy", "lexical:brevity", trained, judge, "base model").startswith(said)
