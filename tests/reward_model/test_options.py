"""Every setting of a reward model changes something, and a wrong one is refused."""

from __future__ import annotations

import json
import math

import pytest

from paretune.data import prompt_key, read_rows
from paretune.errors import InputError
from paretune.reward_model import load_reward_model
from paretune.reward_model.config import RewardConfig
from paretune.training import resolve


def test_the_settings_change_what_is_trained(quick):
    def head(name, *settings):
        return (quick(name, *settings) / "head.safetensors").read_bytes()

    plain = head("plain")
    changes = {
        "lr_head": "lr_head=1e-4",
        "center": "center=0.5",
        "weight": "rating_weight=0.1",
        "pairs": "pairs_from_ratings=true",
        "dropout": "head.dropout=0.5",
    }
    for name, setting in changes.items():
        assert head(name, setting) != plain, setting


def test_the_number_of_resamples_changes_the_intervals_alone(quick):
    one, two = (
        json.loads((quick(f"b{times}", f"bootstrap={times}") / "metrics.json").read_text())["validation"]["kind"]
        for times in (50, 200)
    )
    assert one["r2"]["value"] == two["r2"]["value"] and one["r2"]["low"] != two["r2"]["low"]


def test_ordinal_ratings_are_learnt_and_measured(quick, rows_file):
    folder = quick("ordinal", "loss=ordinal")
    described, metrics = (json.loads((folder / name).read_text()) for name in ("reward.json", "metrics.json"))
    kind = described["objectives"][0]
    assert (kind["unit"], kind["levels"]) == ("ordinal", [0.0, 1.0, 2.0, 3.0, 4.0])
    figures = metrics["validation"]["kind"]
    assert figures["ratings"] > 0 and figures["r2"]["value"] is not None and figures["spearman"]["value"] is not None
    model = load_reward_model(folder, dtype="float32")
    cuts = model.module.head.cuts[0].tolist()
    held_out = [row for row in read_rows(rows_file) if prompt_key(row.prompt) not in described["train_prompts"]]
    answers = [(row.prompt, each) for row in held_out for each in row.completions]
    values = [found["kind"] for found in model.score([prompt for prompt, _ in answers], [a.text for _, a in answers])]
    guess = [sum(1 / (1 + math.exp(cut - value)) for cut in cuts) for value in values]  # the levels lie 1 apart from 0
    truth = [each.scores["kind"] for _, each in answers]
    mean = sum(truth) / len(truth)
    error = sum((t - g) ** 2 for t, g in zip(truth, guess, strict=True))
    spread = sum((t - mean) ** 2 for t in truth)
    assert figures["r2"]["value"] == pytest.approx(1 - error / spread, abs=1e-4)


def test_near_duplicates_stay_together(quick):
    with pytest.raises(InputError, match="too few to split into 2 parts; give more rows, --set near_duplicates=0"):
        quick("near", "near_duplicates=0.1")


def test_without_validation_all_is_trained_on_and_the_card_says_so(quick):
    folder = quick("all", "validation=0")
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["train_prompts"] == 24 and metrics["validation"] == {}
    assert "Nothing was held out." in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("scale=minmax", "unknown setting 'scale'"),
        ("pairs=pareto", "unknown setting 'pairs'"),
        ("pair_weights.a=1", "unknown setting 'pair_weights'"),
        ("source=labels", "'labels' is not allowed"),
        ("loss=huber", "'huber' is not allowed"),
        ("center=-1", "must be 0 or more"),
        ("max_pairs=-1", "must be 0 or more"),
        ("bootstrap=0", "between 1 and 100000"),
        ("preference=", "preference"),
        ("head.depth=99", "field 'head.depth'"),
        ("head.dropout=1", "field 'head.dropout'"),
        ("head.width=0", "field 'head.width'"),
        ("rating_wait=1", "Did you mean 'rating_weight'"),
    ],
)
def test_wrong_settings_are_refused(setting, message):
    with pytest.raises(InputError, match=message):
        resolve(RewardConfig, settings=[setting])


def test_settings_that_exclude_each_other_are_refused():
    with pytest.raises(InputError, match="source=pairs leaves them out"):
        resolve(RewardConfig, settings=["source=pairs", "pairs_from_ratings=true"])
