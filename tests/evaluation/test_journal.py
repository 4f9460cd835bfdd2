"""A killed evaluation goes on: what was answered is taken as it is, and never mixed with another run's."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from evaluation import fakes
from paretune.errors import InputError
from paretune.evaluation import evaluate
from paretune.evaluation.journal import Journal
from paretune.policy import Generation

FAST: dict[str, Any] = {"bootstrap": 20, "control_prompts": 3, "max_prompts": 8}


class Killed(BaseException):
    """Ends a run as a signal would, where no code of ours catches it."""


def falls_at(call: int) -> fakes.FakePolicy:
    """A policy that dies in its n-th call for answers."""

    class Mortal(fakes.FakePolicy):
        def generate(self, *given: Any, **more: Any) -> Any:
            if len(self.calls) + 1 == call:
                raise Killed
            return super().generate(*given, **more)

    return Mortal(fakes.obeys, takes_weights=True)


def fall(*_: Any) -> Any:
    raise Killed


def untimed(value: Any) -> Any:
    """Metrics without seconds, rates and how much was kept."""
    if isinstance(value, dict):
        gone = ("evaluate_seconds", "tokens_per_second", "seconds", "kept_answers")
        return {key: untimed(each) for key, each in value.items() if key not in gone}
    return [untimed(each) for each in value] if isinstance(value, list) else value


def journal_of(world: Any) -> Path:
    return world.path / ".out.answers"


def run(world: Any, folders: list[Path], out: str = "out", **options: Any) -> dict[str, Any]:
    return evaluate(folders, world.rows, world.path / out, **FAST | {"weights": "grid"} | options)


def killed(world: Any, call: int = 3) -> tuple[list[Path], fakes.FakePolicy, fakes.FakePolicy]:
    """Two policies, of which the second died in that call; it lives on when it is asked again."""
    first, second = fakes.FakePolicy(fakes.obeys, takes_weights=True), falls_at(call)
    folders = [world.add(first, "first"), world.add(second, "second")]
    with pytest.raises(Killed):
        run(world, folders)
    return folders, first, second


def revive(policy: fakes.FakePolicy) -> None:
    policy.calls.extend(["dead"] * 10)  # past the call in which it falls


def test_a_killed_run_goes_on_where_it_stopped_and_ends_alike(world: Any) -> None:
    folders, first, second = killed(world)
    assert journal_of(world).exists() and not (world.path / "out").exists()
    revive(second)
    answered, before = len(first.calls), len(second.calls)
    resumed = run(world, folders)
    assert len(first.calls) == answered, "nothing is asked of a finished policy again"
    assert second.calls[before:] == ["weights", "sensed"], "its sweep and its control, and no condition again"
    assert resumed["kept_answers"] == 8 * 6 + 8 * 5 + 3 * 10 + 8 * 6
    assert not journal_of(world).exists() and not list(world.path.glob(".out*"))
    whole = run(world, folders, "whole")
    assert whole["kept_answers"] == 0
    assert untimed(resumed["policies"]) == untimed(whole["policies"])
    assert untimed(resumed["comparison"]) == untimed(whole["comparison"])
    lines = [(world.path / name / "answers.jsonl").read_text() for name in ("out", "whole")]
    assert lines[0] == lines[1]
    seconds = [resumed["policies"]["first"]["conditions"][name]["cost"]["seconds"] for name in ("sensed", "none")]
    assert all(each > 0 for each in seconds), "the cost is that of the run that answered"


def test_what_follows_the_answers_may_change_and_more_may_be_asked(world: Any) -> None:
    folders, first, second = killed(world)
    revive(second)
    answered = len(first.calls)
    told = run(world, folders, bootstrap=30, reference={"warm": 0.1}, profiles="warm=.9", control_prompts=0)
    assert first.calls[answered:] == ["sensed"], "the profile alone is new"
    assert told["comparison"]["reference"] == {"warm": 0.1, "short": 0.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("policy", "of other policies, or of what these were before"),
        ("rows", "on other rows"),
        ("limit", "with another limit of new tokens"),
        ("seed", "with another seed"),
    ],
)
def test_another_run_is_refused_and_overwrite_discards_it(world: Any, change: str, message: str) -> None:
    folders, first, second = killed(world)
    revive(second)
    options: dict[str, Any] = {}
    if change == "policy":
        (folders[0] / "adapter.safetensors").write_bytes(b"trained on")
    elif change == "rows":
        world.rows.write_text(world.rows.read_text().replace('"topic 1"', '"topic 1?"'))
    else:
        options = {"limit": {"max_new_tokens": 9}, "seed": {"seed": 4}}[change]
    before = journal_of(world).read_bytes()
    with pytest.raises(InputError, match=f"{message}.*--overwrite"):
        run(world, folders, **options)
    assert journal_of(world).read_bytes() == before, "what was answered is still there"
    answered = len(first.calls)
    assert run(world, folders, overwrite=True, **options)["kept_answers"] == 0
    assert len(first.calls) > answered and not journal_of(world).exists()


def test_a_card_in_the_folder_makes_no_other_policy_of_it(world: Any) -> None:
    folders, _, second = killed(world)
    revive(second)
    (folders[0] / "README.md").write_text("figures")
    assert run(world, folders)["kept_answers"] > 0


def test_a_broken_end_is_answered_again(world: Any) -> None:
    folders, first, second = killed(world)
    revive(second)
    whole = journal_of(world).read_bytes()
    for cut in (1, 40):
        journal_of(world).write_bytes(whole[:-cut])
        answered = len(first.calls)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.modules["paretune.evaluation.evaluate"], "write", fall)  # before the output is there
            with pytest.raises(Killed):
                run(world, folders)
        assert len(first.calls) == answered
        lines = journal_of(world).read_bytes().splitlines()
        assert all(json.loads(line) for line in lines), "the broken line is gone"
    journal_of(world).write_bytes(whole[:20])  # killed in its first line
    assert run(world, folders)["kept_answers"] == 0


def test_a_failure_after_the_answers_keeps_them(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = fakes.FakePolicy(fakes.obeys, takes_weights=True)
    folder = world.add(policy)
    with monkeypatch.context() as patch:
        patch.setattr(fakes, "short", lambda completions, **_: 1 / 0)
        with pytest.raises((InputError, ZeroDivisionError)):
            run(world, [folder])
    answered = len(policy.calls)
    run(world, [folder])
    assert policy.calls.count("sensed") == policy.calls[:answered].count("sensed") + 1, "control alone was to be asked"


def test_the_base_models_answers_are_kept_too(world: Any) -> None:
    def lives() -> fakes.FakePolicy:
        return fakes.FakePolicy(fakes.obeys, has_head=False, peft=fakes.Adapter(fakes.ignores))

    first, second = lives(), falls_at(1)
    folders = [world.add(first, "first"), world.add(second, "second")]
    with pytest.raises(Killed):
        run(world, folders, include_base=True)
    assert first.calls.count("base") == 1
    revive(second)
    metrics = run(world, folders, include_base=True)
    assert first.calls.count("base") == 1 and metrics["policies"]["base"]["conditions"]["none"]["cost"]["seconds"] > 0


def test_two_at_once_are_refused(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.obeys))

    class Meddling(fakes.FakePolicy):
        def generate(self, *given: Any, **more: Any) -> Any:
            with pytest.raises(InputError, match="is going on already"):
                run(world, [folder])
            return super().generate(*given, **more)

    run(world, [world.add(Meddling(fakes.obeys), "other")])


def test_a_folder_in_its_place_and_answers_of_another_make_are_told_or_left(tmp_path: Path) -> None:
    (tmp_path / ".a.answers").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        Journal(tmp_path / "a", {"format": 1}, discard=False)
    records = [{"format": 1}, {"call": "x", "seconds": 1.0, "answers": []}, {"call": 3}, {"call": "y"}]
    (tmp_path / ".b.answers").write_text("".join(json.dumps(each) + "\n" for each in records))
    journal = Journal(tmp_path / "b", {"format": 1}, discard=False)
    journal.keep(["who"], [], 0.5)
    journal.close()
    assert len((tmp_path / ".b.answers").read_text().splitlines()) == 3, "what cannot be read is written over"
    kept = Journal(tmp_path / "b", {"format": 1}, discard=False)
    assert kept.find(["who"]) == ([], 0.5)
    old = (tmp_path / ".b.answers").read_text().replace('"answers": []', '"answers": [{"text": "no more than this"}]')
    (tmp_path / ".b.answers").write_text(old)
    assert Journal(tmp_path / "b", {"format": 1}, discard=False).find(["who"]) is None


def test_answers_come_back_as_they_were(tmp_path: Path) -> None:
    answers = [
        Generation("a\u2028b\ud800\n", {"x": 0.1 + 0.2}, {"x": 1 / 3}, 3, True, {"x": (0.1, 0.9)}),
        Generation("", None, None, 0, False, None, {"x": 1.0}),
    ]
    journal = Journal(tmp_path / "out", {"format": 1}, discard=False)
    assert journal.find(["who"]) is None and not journal.path.exists()
    journal.keep(["who"], answers, 1.5)
    journal.keep(["who"], answers, 2.5)  # asked twice in one run: written once
    journal.close()
    again = Journal(tmp_path / "out", {"format": 1}, discard=False)
    assert again.find(["who"]) == again.find(["who"]) == (answers, 1.5) and again.find(["other"]) is None
    assert again.taken == 2 and len(again.path.read_text().splitlines()) == 2
