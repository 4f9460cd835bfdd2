"""What training does with the rows before any model is loaded: the split and the pairs by the method's settings."""

from __future__ import annotations

import json

import pytest

from paretune.data import build_pairs
from paretune.errors import InputError
from paretune.methods import get_method
from paretune.methods.prepare import prepare
from paretune.training import resolve


def prepared(path, *settings, method="sft"):
    how = get_method(method)
    config = resolve(how.config, presets=how.presets, default_preset=how.default_preset, settings=settings)
    return prepare(how, config, path, (), skip_bad_rows=False)


@pytest.fixture
def twins(tmp_path):
    """Sixty long prompts, each once more with another mark at the end."""
    lines = []
    for at in range(60):
        scores = [{"text": f"{k}", "scores": {"a": (at * 7 + k) % 11, "b": (at * 3 + 5 * k) % 13}} for k in range(3)]
        for mark in ".!":
            name = f"{at * 7919} {chr(97 + at % 26) * 9}"
            prompt = f"Tell the whole story of the ship that went by the name of {name}{mark}"
            lines.append(json.dumps({"id": f"{at}{mark}", "prompt": prompt, "completions": scores}))
    path = tmp_path / "twins.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_near_duplicates_are_held_together(twins):
    def torn(split):
        parts = {row.id: name for name in ("train", "validation", "test") for row in getattr(split, name)}
        return sum(parts[f"{at}."] != parts[f"{at}!"] for at in range(60))

    assert torn(prepared(twins).split) == 0
    assert torn(prepared(twins, "near_duplicates=0").split) > 10
    assert prepared(twins).data["split"]["near_duplicates"] == 0.8


def test_the_rule_of_pairs_is_kept_in_the_words_of_build_pairs(twins):
    found = prepared(twins, "pairs=weights", "pair_weights={a: 2, b: 1}", "pair_margin=0.4", "seed=4")
    assert found.data["pairs"] == {"rule": "weights", "weights": {"a": 2.0, "b": 1.0}, "margin": 0.4, "seed": 4}
    _, report = build_pairs(found.split.train, found.objectives, **found.data["pairs"])
    assert report.by_weights and report.below_margin
    assert prepared(twins, "pairs=weights", "pair_weights.b=3").data["pairs"]["weights"] == {"b": 3.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["pairs=weights"], "field 'pair_weights': belongs to pairs=weights"),
        (["pair_weights.a=1"], "field 'pair_weights': belongs to pairs=weights"),
        (["pairs=weights", "pair_weights=3"], "field 'pair_weights': must be a mapping"),
        (["pairs=weights", "pair_weights.a=much"], r"field 'pair_weights\.a': must be a number"),
        (["pairs=weights", "pair_weights.c=1"], "field 'pair_weights': a weight is given for 'c'"),
        (["pairs=median"], "field 'pairs': 'median' is not allowed"),
        (["pair_margin=-1"], "field 'pair_margin': must be 0 or more"),
        (["near_duplicates=2"], r"field 'near_duplicates': must lie in \[0, 1\]"),
    ],
)
def test_bad_settings_of_the_data(twins, settings, message):
    with pytest.raises(InputError, match=message):
        prepared(twins, *settings)


def test_prompts_of_one_template_say_how_to_part_them(tmp_path):
    letter = "Please write a short reply to customer number {} who asks where the parcel is."
    path = tmp_path / "letters.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": letter.format(at), "completions": ["yes"]}) for at in range(50)))
    with pytest.raises(InputError, match=r"the others nearly repeat them\) .*--set near_duplicates=0 to part"):
        prepared(path)
    assert len(prepared(path, "near_duplicates=0").split.train) > 30
