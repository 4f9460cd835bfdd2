"""Benchmarks tell bad input as the verbs do: one message, exit 2, no traceback."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

GOOD = {"prompt": "Hi", "completions": [{"text": "a b", "scores": {"joy": 0.1}}, {"text": "c", "scores": {"joy": 0.9}}]}


@pytest.fixture
def refused(monkeypatch, capsys, benchmark):
    """Run a benchmark on bad input; gives its message."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            benchmark("common").run(benchmark(name).main)
        told = capsys.readouterr()
        assert stopped.value.code == 2 and told.out == ""
        assert told.err.count("\n") == 1 and told.err.startswith("error: "), told.err
        return told.err

    return run


def rows(path, *values):
    path.write_text("".join((value if isinstance(value, str) else json.dumps(value)) + "\n" for value in values))
    return path


def test_heads(refused, tmp_path, tiny_llama):
    model = ("--model", tiny_llama)
    data = tmp_path / "rows.jsonl"
    assert "rows.jsonl: no such file" in refused("heads", data, *model)
    assert "line 2: the line is not JSON" in refused("heads", rows(data, GOOD, "{"), *model)
    assert "the rows have no scores" in refused("heads", rows(data, {"prompt": "Hi"}), *model)
    one = refused("heads", rows(data, GOOD), *model)
    assert "1 prompt has two scored completions that differ; --folds 5 needs 10" in one
    assert "which --targets wanted needs" in refused("heads", rows(data, GOOD), "--targets", "wanted", *model)
    assert "no such model folder" in refused("heads", data, "--model", tmp_path / "gone")


def test_ablation(refused, tmp_path, scored_rows, tiny_llama):
    asked = ("--out", tmp_path / "out", "--only", "robust", "--model", tiny_llama)
    assert "gone.jsonl: no such file" in refused("ablation", tmp_path / "gone.jsonl", *asked)
    assert "no such file" in refused("ablation", tmp_path, *asked)
    assert "line 1: the line is not JSON" in refused("ablation", rows(tmp_path / "rows.jsonl", "{"), *asked)
    wanted = refused("ablation", scored_rows, *asked, "--set", "targets=wanted", "--set", "dtype=float32")
    assert "no row has a 'wanted' profile" in wanted
    figures = tmp_path / "out" / "robust-0" / "figures.json"
    figures.write_text("{")
    assert "figures.json, line 1: is not JSON" in refused("ablation", scored_rows, *asked, "--table")
    figures.write_text("{}")
    for more in ((), ("--table",)):
        assert "holds no figures of this benchmark" in refused("ablation", scored_rows, *asked, *more)
    shutil.rmtree(tmp_path / "out")
    assert "Did you mean 'lr'" in refused("ablation", scored_rows, *asked, "--set", "lrr=1")


@pytest.mark.parametrize("option", ["--new", "--prompt", "--long", "--repeat"])
def test_generate(refused, option):
    for value in ("0", "-3"):
        assert f"{option} must be at least 1" in refused("generate", option, value)


def test_pins_and_reward_model(refused):
    assert "--prompts must be at least 2, found 0" in refused("pins", "--prompts", 0)
    assert "--steps must be at least 2, found 1" in refused("reward_model", "--steps", 1)
    assert "--held-out must be at least 1" in refused("reward_model", "--held-out", 0)
    assert "--batch 9 takes more pairs than --pairs 8" in refused("reward_model", "--batch", 9, "--pairs", 8)


def test_methods(refused, tmp_path, scored_rows, tiny_llama):
    asked = ("--out", tmp_path / "out", "--model", tiny_llama, "--methods", "sft")
    assert "gone.jsonl: no such file" in refused("methods", tmp_path / "gone.jsonl", *asked)
    assert "there is no report yet" in refused("methods", scored_rows, *asked, "--table")
    unknown = refused("methods", scored_rows, *asked, "--set", "sftt:lr=1")
    assert "unknown method 'sftt'. Did you mean 'sft'?" in unknown
    assert "--curve asks for 9" in refused("methods", scored_rows, *asked, "--curve", "9")
