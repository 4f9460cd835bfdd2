"""The whole verb on see-through policies: obedience must show, disobedience must be said, bad input refused."""

from __future__ import annotations

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from evaluation import fakes
from paretune.data import prompt_key, read_rows, split_rows
from paretune.errors import InputError
from paretune.evaluation import CONDITIONS, describe, evaluate

FAST = {"bootstrap": 200, "control_prompts": 6}


def _run(world: Any, policy: fakes.FakePolicy, **arguments: Any) -> dict[str, Any]:
    folder = world.add(policy)
    metrics = evaluate([folder], world.rows, world.path / "out", **FAST, **arguments)
    return dict(metrics["policies"]["policy"])


def test_a_policy_that_obeys_and_senses_is_said_to_help(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys))
    assert own["verdict"]["helps"] is True
    assert own["verdict"]["beats"] == ["shuffled", "mean", "ones", "none"]
    assert list(own["conditions"]) == list(CONDITIONS)
    # the oracle's answers are the targets, up to the spelled digits
    assert own["conditions"]["oracle"]["distance"]["value"] == pytest.approx(0, abs=1e-3)
    assert own["conditions"]["sensed"]["distance"]["value"] < 0.08
    for rival in ("shuffled", "mean", "ones", "none"):
        assert own["differences"][rival]["low"] > 0
    assert own["differences"]["oracle"]["high"] < 0


def test_a_policy_that_obeys_has_full_control(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys))
    for name in fakes.NAMES:
        assert own["control"][name]["spearman"]["value"] == pytest.approx(1)
        assert own["control"][name]["spearman_within"]["value"] == pytest.approx(1)
        assert own["control"][name]["mae"]["value"] == pytest.approx(0, abs=1e-3)
        assert [round(step["obtained"]["value"], 3) for step in own["control"][name]["curve"]] == [
            0.1,
            0.3,
            0.5,
            0.7,
            0.9,
        ]
        assert own["control"][name]["prompts"] == 6
    assert own["control_accuracy"]["value"] == 1
    assert any("head is a limit" in limit for limit in own["verdict"]["limits"])


def test_a_policy_that_ignores_its_profile_is_said_so(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.ignores))
    assert own["verdict"]["helps"] is False
    assert own["verdict"]["beats"] == []
    assert "beats none" in own["verdict"]["headline"]
    assert any("Control is a limit" in limit for limit in own["verdict"]["limits"])
    assert own["differences"]["none"]["value"] == 0
    spearman = own["control"]["warm"]["spearman"]
    assert spearman["value"] is None
    assert "constant" in spearman["why"]
    assert own["control"]["warm"]["spearman_within"]["value"] == 0


def test_a_head_that_senses_noise_does_not_help(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys, sensing_error=5.0))
    assert own["verdict"]["helps"] is False
    assert any("does not predict better than the training mean" in limit for limit in own["verdict"]["limits"])
    assert own["head"]["warm"]["head"]["r2"]["value"] < 0


def test_head_quality_beside_constant_and_probe(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys))
    for name in fakes.NAMES:
        quality = own["head"][name]
        assert quality["head"]["r2"]["value"] > 0.9
        assert quality["probe"]["r2"]["value"] > 0.9
        assert quality["constant"]["r2"]["value"] <= 0
        assert quality["constant"]["spearman"]["value"] is None
        assert quality["head"]["r2"]["low"] <= quality["head"]["r2"]["value"] <= quality["head"]["r2"]["high"]


def test_intervals_are_held_to_their_word(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys))
    for name in fakes.NAMES:
        held = own["head"][name]["interval"]
        assert held["level"] == 0.8 and held["coverage"]["low"] <= held["coverage"]["value"] <= held["coverage"]["high"]
        assert held["coverage"]["value"] == pytest.approx(0.8, abs=0.2)
        assert held["width"]["value"] == pytest.approx(2 * 1.2816 * 0.05)
    report = (world.path / "out" / "report.html").read_text()
    assert "Share of held-out targets inside the sensed 80% interval: warm" in report


def test_a_head_that_is_not_calibrated_is_said_so(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys, calibrated=False))
    assert all("interval" not in each for each in own["head"].values())
    assert "gives no intervals" in (world.path / "out" / "report.html").read_text()


def test_wins_against_the_chosen_completion(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys))
    assert own["wins"]["oracle"]["joint"]["tie"]["value"] == 1
    assert own["wins"]["ones"]["joint"]["win"]["value"] > 0.9
    assert own["chosen"]["distance"]["value"] == 0
    assert own["closer_than_chosen"]["sensed"]["value"] == 0


def test_the_test_prompts_are_the_stored_split(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys))
    held_out = {row.id for row in split_rows(read_rows(world.rows), **fakes.SPLIT).test}
    lines = [json.loads(line) for line in (world.path / "out" / "answers.jsonl").read_text().splitlines()]
    assert {line["id"] for line in lines} == held_out
    assert own["test"]["prompts"] == len(held_out)
    assert "held-out test part" in own["test"]["source"]
    first = next(line for line in lines if line["condition"] == "sensed")
    assert first["values"] == pytest.approx(first["profile"], abs=1e-3)
    assert {line["condition"] for line in lines} == {*CONDITIONS, "control"}


def test_another_file_loses_the_prompts_of_training(world: Any) -> None:
    other = fakes.write_data(world.path / "other.jsonl", rows=20)
    seen = [prompt_key([{"role": "user", "content": f"topic {k}"}]) for k in range(5)]
    folder = world.add(fakes.FakePolicy(fakes.obeys, metadata={"train_prompts": seen}))
    own = evaluate([folder], other, world.path / "out", **FAST, allow_overlap=True)["policies"]["policy"]
    assert own["test"]["prompts"] == 15
    assert own["test"]["dropped_trained_on"] == 5
    assert "another file" in own["test"]["source"]
    assert any("trained on their prompts" in note for note in own["notes"])


def test_a_copy_of_the_training_file_is_known_by_its_content(world: Any) -> None:
    copy = world.path / "copy.jsonl"
    copy.write_bytes(world.rows.read_bytes())
    sha256 = hashlib.sha256(copy.read_bytes()).hexdigest()
    stored = {"path": "gone.jsonl", "sha256": sha256, "split": fakes.SPLIT, "targets": "wanted"}
    folder = world.add(fakes.FakePolicy(fakes.obeys, metadata={"data": stored}))
    own = evaluate([folder], copy, world.path / "out", **FAST)["policies"]["policy"]
    assert "held-out test part" in own["test"]["source"]


def test_without_a_head_only_none_is_run(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.ignores, has_head=False, method="dpo")
    own = _run(world, policy)
    assert policy.calls == ["none"]
    assert list(own["conditions"]) == ["none"]
    assert own["verdict"]["helps"] is None
    assert "no sensing head" in own["verdict"]["headline"]
    assert own["head"] is None and own["control"] is None and own["control_accuracy"] is None


def test_stored_scores_cannot_measure_answers(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.obeys, objectives=fakes.objectives(("column:warm", fakes.SPECS[1])))
    own = _run(world, policy)
    assert own["scored"] == ["short"]
    assert "cannot score a new answer" in own["unscored"]["warm"]
    assert set(own["conditions"]["sensed"]["scores"]) == {"short"}
    assert set(own["head"]) == set(fakes.NAMES)


def test_nothing_to_score_is_no_verdict(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys, objectives=fakes.objectives(("column:warm", ""))))
    assert own["verdict"]["helps"] is None
    assert own["front"] is None
    assert own["wins"]["sensed"]["joint"]["tie"]["value"] is None
    assert (world.path / "out" / "front.png").read_bytes().startswith(b"\x89PNG")


def test_objectives_can_be_chosen_and_measured_otherwise(world: Any) -> None:
    policy = fakes.FakePolicy(fakes.obeys, objectives=fakes.objectives(("column:warm", fakes.SPECS[1])))
    own = _run(world, policy, objectives=[f"warm={fakes.SPECS[0]}"])
    assert own["scored"] == ["warm"]
    assert own["unscored"] == {"short": "not asked for"}


def test_missing_scores_are_masked_and_counted(world: Any) -> None:
    def half(prompt: Any, profile: Any) -> str:
        return fakes.spelled({"warm": 0.5}) if prompt[-1]["content"].endswith("1") else fakes.obeys(prompt, profile)

    own = _run(world, fakes.FakePolicy(half))
    sensed = own["conditions"]["sensed"]
    missing = sensed["unscored_answers"]["short"]
    assert missing > 0
    assert sensed["scores"]["short"]["n"] == own["test"]["prompts"] - missing
    assert own["front"]["prompts"] == own["test"]["prompts"] - missing


def test_echo_length_and_cost(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(lambda prompt, profile: fakes.obeys(prompt, profile) + " ECHO"))
    sensed = own["conditions"]["sensed"]
    assert sensed["echoes"]["value"] == 1
    assert sensed["words"]["value"] == 3
    assert sensed["finished"]["value"] == 1
    assert sensed["cost"]["tokens"] == 3 * own["test"]["prompts"]


def test_the_same_seed_gives_the_same_numbers(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.obeys))
    runs = [evaluate([folder], world.rows, world.path / f"out{i}", seed=i // 2, **FAST) for i in range(3)]
    for run in runs:
        for each in (*run["policies"]["policy"]["conditions"].values(), run["policies"]["policy"]):
            each.pop("cost")
    first, again, other = (run["policies"]["policy"] for run in runs)
    assert first == again
    assert first["differences"] != other["differences"]


def test_the_folder_is_complete_and_holds_no_nan(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.ignores))
    metrics = evaluate([folder], world.rows, world.path / "out", **FAST)
    assert {path.name for path in (world.path / "out").iterdir()} == {
        ".paretune", "metrics.json", "report.html", "front.png", "answers.jsonl", "card-policy.md",
    }  # fmt: skip
    stored = json.loads((world.path / "out" / "metrics.json").read_text(), parse_constant=pytest.fail)
    assert stored == json.loads(json.dumps(metrics))
    assert metrics["command"].startswith("paretune evaluate ")
    assert any("beats none" in line for line in describe(metrics))


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = '<img src=x onerror="alert(1)"></div><script>alert(2)</script>\'"\ud800\x00'


def test_model_text_reaches_the_page_as_text_only(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(lambda prompt, profile: HOSTILE + fakes.obeys(prompt, profile)))
    evaluate([folder], world.rows, world.path / "out", **FAST)
    page = _Page()
    page.feed((world.path / "out" / "report.html").read_text(encoding="utf-8"))
    assert not {"img", "iframe", "link", "object"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert all(value and value.startswith("#") for name, value in page.attributes if name == "href")
    assert '<img src=x onerror="alert(1)">' in page.text
    assert page.tags.count("h1") == 1
    assert all(dict(page.attributes).get(name) for name in ("aria-label", "lang"))


def test_several_policies_are_compared(world: Any) -> None:
    folders = [
        world.add(fakes.FakePolicy(fakes.obeys), "good"),
        world.add(fakes.FakePolicy(fakes.ignores, has_head=False, method="dpo"), "plain"),
    ]
    metrics = evaluate(folders, world.rows, world.path / "out", **FAST)
    assert list(metrics["policies"]) == ["good", "plain"]
    compared = metrics["comparison"]
    assert compared["objectives"] == list(fakes.NAMES)
    assert compared["conditions"] == {"good": "sensed", "plain": "none"}
    assert compared["same_prompts"] is True
    assert len(compared["front"]["points"]) == 2
    assert "Comparison" in (world.path / "out" / "report.html").read_text()


def test_fewer_conditions_give_no_verdict(world: Any) -> None:
    own = _run(world, fakes.FakePolicy(fakes.obeys), conditions=["none", "sensed"])
    assert list(own["conditions"]) == ["sensed", "none"]
    assert own["verdict"]["helps"] is None
    assert "Not run: shuffled, mean, ones" in own["verdict"]["text"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"conditions": ["sensd"]}, "unknown condition 'sensd'.*Did you mean 'sensed'"),
        ({"objectives": ["wram"]}, "no objective 'wram'.*Did you mean 'warm'"),
        ({"split": "tset"}, "unknown split 'tset'.*Did you mean 'test'"),
        ({"split": "train"}, "cannot test a policy"),
        ({"max_prompts": 1}, "max_prompts must be at least 2"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"max_prompts": 2.5}, "max_prompts must be a whole number"),
        ({"max_new_tokens": 0}, "max_new_tokens must be"),
        ({"conditions": "sensd"}, "unknown condition 'sensd'"),
        ({"objectives": "wram"}, "no objective 'wram'"),
        ({"judge_with": "warm"}, "NAME=SPEC.*found 'warm'"),
        ({"weights": 0.5}, "weights are one or a list of them, found 0.5"),
        ({"profiles": 3}, "profiles are one or a list of them, found 3"),
        ({"profiles": "warm=2"}, "the profile 'warm=2'.*must lie in"),
    ],
)
def test_bad_arguments_are_told_and_leave_nothing(world: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _run(world, fakes.FakePolicy(fakes.obeys), **arguments)
    assert not (world.path / "out").exists()


def test_folders_that_are_not_ours_are_never_replaced(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.obeys))
    foreign = world.path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    (folder / ".paretune").write_text("")
    with pytest.raises(InputError, match="not written by paretune"):
        evaluate([folder], world.rows, foreign, overwrite=True, **FAST)
    with pytest.raises(InputError, match="choose another output folder"):
        evaluate([folder], world.rows, folder, overwrite=True, **FAST)
    with pytest.raises(InputError, match="choose another output folder"):
        evaluate([folder], world.rows, world.path, overwrite=True, **FAST)
    with pytest.raises(InputError, match="lies in a policy folder; choose another"):
        evaluate([folder], world.rows, folder / "report", **FAST)
    assert (folder / "policy.json").exists() and world.rows.exists()


def test_a_second_run_needs_overwrite(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.obeys))
    evaluate([folder], world.rows, world.path / "out", **FAST)
    with pytest.raises(InputError, match="--overwrite"):
        evaluate([folder], world.rows, world.path / "out", **FAST)
    evaluate([folder], world.rows, world.path / "out", overwrite=True, **FAST)


def test_no_policy_and_unusable_data(world: Any, tmp_path: Path) -> None:
    folder = world.add(fakes.FakePolicy(fakes.obeys))
    with pytest.raises(InputError, match="is no policy folder"):
        evaluate([tmp_path / "nothing"], world.rows, world.path / "out")
    with pytest.raises(InputError, match="no policy is given"):
        evaluate([], world.rows, world.path / "out")
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    with pytest.raises(InputError, match=r"at least 2 usable prompts, found 0.*paretune score"):
        evaluate([folder], bare, world.path / "out")
    few = fakes.write_data(tmp_path / "few.jsonl", rows=1)
    with pytest.raises(InputError, match="at least 2 usable prompts, found 1"):
        evaluate([folder], few, world.path / "out")
