"""Comparing runs: what differs is shown, what is equal is counted, and what cannot be compared is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paretune.errors import InputError
from paretune.tracking import Comparison, compare_runs
from tracking_runs import break_off, report


@pytest.fixture(scope="module")
def made(quick, tmp_path_factory) -> Path:
    """Two policies that differ in seed and learning rate, a copy of the first, and a broken training."""
    root = tmp_path_factory.mktemp("compared")
    quick(root / "a")
    quick(root / "b", "lr=0.001", "seed=3")
    shutil.copytree(root / "a", root / "same")
    with pytest.MonkeyPatch.context() as patch:
        break_off(patch, lambda: quick(root / "c", "lr=0.002"), step=3)
    report(root / "report", str(root / "a"), 0.25)
    return root


def rows(found: Comparison) -> dict[str, tuple]:
    return {f"{row.section}.{row.name}": row.values for row in found.rows}


def test_what_differs_and_by_how_much(made):
    found = compare_runs([made / "a", made / "b"])
    told = rows(found)
    assert told["settings.lr"] == (0.0002, 0.001) and told["settings.seed"] == told["data.split.seed"] == (0, 3)
    assert {"settings.batch_size", "base.fingerprint", "data.sha256"}.isdisjoint(told) and found.equal > 20
    losses = [json.loads((made / name / "metrics.json").read_text())["loss"] for name in "ab"]
    (row,) = [row for row in found.rows if (row.section, row.name) == ("metrics", "loss")]
    assert row.values == tuple(losses) and row.differences == (0.0, losses[1] - losses[0])
    assert told["evaluation.distance"] == (0.25, None) and told["evaluation.distance.none"] == (0.4, None)
    json.dumps(found.to_dict())


def test_what_is_equal_is_shown_when_asked_for(made):
    found = compare_runs([made / "a", made / "b"], everything=True)
    assert rows(found)["settings.batch_size"] == (5, 5) and found.equal == sum(row.equal for row in found.rows)
    assert found.to_dict()["equal_rows"] == found.equal
    shown = compare_runs([made / "a", made / "b"])
    assert [row for row in found.rows if not row.equal] == shown.rows


def test_runs_that_are_the_same(made):
    found = compare_runs([made / "a", made / "same"])
    assert {row.section for row in found.rows} == {"evaluation"}  # there is a report on one of them alone


def test_three_runs_one_of_them_unfinished(made):
    found = compare_runs([made / "a", made / "b", made / "c"])
    assert rows(found)["settings.lr"] == (0.0002, 0.001, 0.002)
    (row,) = [row for row in found.rows if row.name == "lr"]
    assert row.differences == pytest.approx((0.0, 0.0008, 0.0018))
    assert found.to_dict()["runs"][2]["state"] == "interrupted"
    assert rows(found)["metrics.loss"][2] is None
    alone = compare_runs([made / "a", made / "c"])
    assert {row.section for row in alone.rows} == {"base", "data", "settings", "renderer", "metrics", "evaluation"}
    assert [(row.name, row.values) for row in alone.rows if row.section == "settings"] == [("lr", (0.0002, 0.002))]


def test_a_number_and_a_flag_are_not_equal(made, tmp_path):
    for name, value in (("x", 1), ("y", True)):
        shutil.copytree(made / "a", tmp_path / name)
        described = json.loads((tmp_path / name / "policy.json").read_text())
        described["config"]["clip"] = value
        (tmp_path / name / "policy.json").write_text(json.dumps(described))
    assert rows(compare_runs([tmp_path / "x", tmp_path / "y"])) == {"settings.clip": (1, True)}


def test_what_cannot_be_compared(made, tmp_path):
    with pytest.raises(InputError, match="give two runs or more"):
        compare_runs([made / "a"])
    with pytest.raises(InputError, match="is given twice"):
        compare_runs([made / "a", made / "b" / ".." / "a"])
    with pytest.raises(InputError, match=r"no such run \(paretune runs lists them\)"):
        compare_runs([made / "a", made / "gone"])
    with pytest.raises(InputError, match="is no run: it has neither"):
        compare_runs([made / "a", made / "report"])
    (tmp_path / "policy.json").write_text("nothing")
    with pytest.raises(InputError, match=r"cannot be compared: .*policy\.json, line 1: is not JSON"):
        compare_runs([made / "a", tmp_path])
