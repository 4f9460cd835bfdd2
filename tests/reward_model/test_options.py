"""Every setting of a reward model changes something, and a wrong one is refused."""

from __future__ import annotations

import json

import pytest

from paretune.errors import InputError
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
