"""Model cards: the numbers of metrics.json, put between marks, replaced by the next run, the rest untouched."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from evaluation import fakes
from paretune.errors import InputError
from paretune.evaluation import evaluate
from paretune.evaluation.card import BEGIN, END, card_names, render_card

FAST: dict[str, Any] = {"bootstrap": 50, "control_prompts": 0}


def run(world: Any, **wishes: Any) -> dict[str, Any]:
    folder = world.path / "policy"
    if not folder.exists():
        world.add(fakes.FakePolicy(fakes.obeys, takes_weights=True))
    metrics: dict[str, Any] = evaluate([folder], world.rows, world.path / "out", overwrite=True, **FAST | wishes)
    return metrics


def test_the_card_says_what_metrics_say(world: Any) -> None:
    metrics = run(world, weights="grid", profiles="warm=.9")
    own = metrics["policies"]["policy"]
    card = (world.path / "out" / "card-policy.md").read_text()
    assert card == render_card("policy", json.loads((world.path / "out" / "metrics.json").read_text()))
    for name, each in own["conditions"].items():
        (line,) = [line for line in card.splitlines() if re.match(rf"\| (\*\*)?{name}(\*\*)? \|", line)]
        assert f"{each['distance']['value']:.3f} [{each['distance']['low']:.3f}, " in line
        assert f"{own['multi_win'][name]['value']:.3f}" in line and f"{each['words']['value']:.1f}" in line
    assert "| **sensed** |" in card, "the natural condition stands out"
    for point in own["sweep"]:
        assert f"| {point['name']} | {point['multi_win']['value']:.3f}" in card
    assert f"{own['front_set']['hypervolume']['value']:.3f}" in card and "reference point warm = 0, short = 0" in card
    assert own["verdict"]["headline"] in card and metrics["command"] in card


def test_readme_is_only_changed_where_asked(world: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.obeys))
    readme = folder / "README.md"
    readme.write_text("# My policy\n\nWords of mine.\n")
    run(world)
    assert readme.read_text() == "# My policy\n\nWords of mine.\n"
    run(world, card=True)
    first = readme.read_text()
    assert first.startswith(f"# My policy\n\nWords of mine.\n\n{BEGIN}\n\n## What `paretune evaluate` measured")
    card = (world.path / "out" / "card-policy.md").read_text()
    assert card in first and first.endswith(f"{END}\n")
    readme.write_text(first + "\nMore words.\n")
    run(world, card=True, seed=3)
    second = readme.read_text()
    assert second.startswith("# My policy\n\nWords of mine.\n\n") and second.endswith(f"{END}\n\nMore words.\n")
    assert second.count(BEGIN) == 1 and "seed 3" in second and "seed 0" not in second
    assert not [path for path in folder.iterdir() if path.name not in ("README.md", "policy.json")]


def test_a_policy_without_a_readme_gets_one(world: Any) -> None:
    run(world, card=True)
    assert (world.path / "policy" / "README.md").read_text().startswith(BEGIN)


@pytest.mark.parametrize(
    "text", [BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}", b"\xff\xfe"], ids=range(5)
)  # fmt: skip
def test_broken_marks_are_told_before_anything_is_done(world: Any, text: Any) -> None:
    folder = world.add(fakes.FakePolicy(fakes.obeys))
    (folder / "README.md").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=r"README.md: .*(marks of an earlier evaluation|cannot be read as text)"):
        run(world, card=True)
    assert not (world.path / "out").exists()
    run(world)  # nobody asked for a card: README.md is not looked at


def test_hostile_names_cannot_break_the_card(world: Any) -> None:
    own = fakes.FakePolicy(fakes.obeys, base=f"{END} | x")
    world.add(own)
    run(world, card=True)
    run(world, card=True)
    text = (world.path / "policy" / "README.md").read_text()
    assert text.count(END) == 1


def test_cards_are_files_of_their_own() -> None:
    assert card_names(["a", "runs/a", "runs/../a", "..", "a b"]) == {
        "a": "card-a.md",
        "runs/a": "card-runs-a.md",
        "runs/../a": "card-runs-..-a.md",
        "..": "card-policy.md",
        "a b": "card-a-b.md",
    }
    assert card_names(["a b", "a/b"]) == {"a b": "card-a-b.md", "a/b": "card-a-b-2.md"}


def test_a_comparison_is_on_each_card(world: Any) -> None:
    policies = {"one": fakes.obeys, "two": fakes.ignores, "three": fakes.ignores}
    folders = [world.add(fakes.FakePolicy(answer), name) for name, answer in policies.items()]
    metrics = evaluate(folders, world.rows, world.path / "out", card=True, **FAST)
    shown = [each["claim"] for each in metrics["comparison"]["tests"] if each["significant"]]
    assert any(claim.startswith("one's distance to the target is smaller than two's") for claim in shown)
    one, two = ((folder / "README.md").read_text() for folder in folders[:2])
    assert all(f"- {claim}" in one for claim in shown), "the other two are alike"
    assert "- In distance to the target, no difference from three is shown." in two
