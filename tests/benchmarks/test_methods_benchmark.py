"""benchmarks/methods.py trains by one budget, compares in one report, and makes nothing twice."""

from __future__ import annotations

import json
import sys

import pytest

from measured_rows import write_measured


@pytest.fixture
def run(monkeypatch, capsys, tiny_llama, tmp_path, benchmark):
    """Runs the benchmark on the tiny model; gives what it printed."""
    methods = benchmark("methods")
    rows = write_measured(tmp_path / "rows.jsonl", "vowels", "short")

    def go(*arguments):
        fixed = ["--out", str(tmp_path), "--model", str(tiny_llama), "--max-new-tokens", "4", "--max-prompts", "4"]
        small = ["--set", "dtype=float32", "--set", "test=0.3", "--set", "lora_r=4", "--set", "lora_alpha=8"]
        monkeypatch.setattr(sys, "argv", ["methods", str(rows), *fixed, *small, *map(str, arguments)])
        methods.main()
        return capsys.readouterr().out

    return go


def test_a_budget_a_report_and_nothing_twice(run, tmp_path):
    asked = ("--methods", "sft", "soups", "--tokens", "600", "--set", "sft:lr=1e-3")
    found = json.loads(run(*asked, "--json"))
    assert found.keys() == {"sft", "soups", "base"}
    for method, adapters in (("sft", 1), ("soups", 2)):
        (figures,) = found[method]
        measured = json.loads((tmp_path / f"{method}-0" / "metrics.json").read_text())
        assert figures["adapters"] == adapters and figures["train_tokens"] == measured["tokens"]
        # each adapter ends with the step that reaches its share of the tokens
        assert 600 <= measured["tokens"] < 600 + adapters * 600
        config = json.loads((tmp_path / f"{method}-0" / "policy.json").read_text())["config"]
        assert (config["max_tokens"], config["lora_r"]) == (600, 4)
    assert found["soups"][0]["condition"] == "centre" and found["sft"][0]["condition"] == "none"
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*") if each.is_file()}
    table = run(*asked)
    assert before == {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*") if each.is_file()}
    assert run(*asked, "--table") == table
    rates = [float(line.split(" | ")[3]) for line in table.splitlines()[2:]]
    assert rates == sorted(rates, reverse=True) and len(rates) == 3
