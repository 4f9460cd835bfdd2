"""Each verb hands every option to its function, and shows what that returns."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paretune.progress import NO_PROGRESS


class Spy:
    """Stands in for a function of a room: keeps what it was called with."""

    def __init__(self, result: Any) -> None:
        self.result, self.arguments, self.options = result, (), {}

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.arguments, self.options = arguments, options
        return self.result


SAMPLED = SimpleNamespace(rows=2, completions=8, tokens=90, new_tokens=40, seconds=1.0, dropped=1, resumed=1)


@dataclass(frozen=True)
class Trained:
    folder: str = "p"
    method: str = "sga"
    rows: int = 9
    pairs: int = 8
    steps: int = 7
    seconds: float = 61.0
    metrics: dict[str, Any] = field(default_factory=lambda: {"loss": 0.5})
    dropped: dict[str, int] = field(default_factory=lambda: {"ties": 2, "too long": 0})


def test_sample_passes_every_option(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(SAMPLED)
    monkeypatch.setattr("paretune.policy.sample", spy)
    invoke("sample", "p.txt", "--model", "m", "--out", "o.jsonl")
    defaults = dict(n=4, vary=None, max_new_tokens=128, temperature=0.8, top_p=0.95, seed=0, batch_size=32)
    defaults |= dict(overwrite=False, skip_bad_rows=False, dtype="auto", progress=NO_PROGRESS)
    assert spy.arguments == (Path("p.txt"), "m", Path("o.jsonl"))
    assert spy.options == defaults
    options = "-n 2 --vary v.txt --max-new-tokens 9 --temperature 0 --top-p 0.5 --seed 3 --batch-size 5 --dtype float32"
    done = invoke(
        "sample", "p.txt", "--model", "m", "--out", "o.jsonl", *options.split(), "--overwrite", "--skip-bad-rows"
    )
    changed = dict(n=2, vary=Path("v.txt"), max_new_tokens=9, temperature=0.0, top_p=0.5, seed=3, batch_size=5)
    assert spy.options == changed | dict(overwrite=True, skip_bad_rows=True, dtype="float32", progress=NO_PROGRESS)
    assert "8 completions of 2 prompts, 90 tokens" in done.stdout and "1 prompts were dropped" in done.stdout
    assert "1 prompts were there from an interrupted run; 40 tokens are of this one" in done.stdout


def test_train_passes_every_option(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(Trained())
    monkeypatch.setattr("paretune.methods.train", spy)
    done = invoke("train", "sga", "--data", "d.jsonl", "--model", "m", "--out", "p")
    assert done.exit_code == 0, done.output
    assert spy.arguments == ("sga", "d.jsonl", "m", Path("p"))
    plain = dict(config=None, settings=(), objectives=(), overwrite=False, skip_bad_rows=False, strict=False, seed=None)
    assert {name: spy.options[name] for name in plain} == plain
    assert "loss  0.500" in done.stdout and "2 ties" in done.stdout and "too long" not in done.stdout
    options = (
        "--config c.yaml --set a=1 --set b.c=x=y --objective joy --seed 0 --strict --skip-bad-rows --overwrite --json"
    )
    done = invoke("train", "sga", "--data", "d.jsonl", "--model", "m", "--out", "p", *options.split())
    changed = dict(config=Path("c.yaml"), settings=("a=1", "b.c=x=y"), objectives=("joy",))
    changed |= dict(overwrite=True, skip_bad_rows=True, strict=True, seed=0)
    assert {name: spy.options[name] for name in changed} == changed
    assert json.loads(done.stdout)["steps"] == 7


VERDICT = {"headline": "Sensing helps.", "text": "It beats the mean.", "limits": ["The head is the limit."]}
CONDITION = {"scores": {"joy": {"value": 0.5}}, "distance": {"value": 0.25}, "words": {"value": 12.0}}
EVALUATED = {
    "policies": {"p": {"method": "sga", "verdict": VERDICT, "scored": ["joy"], "conditions": {"sensed": CONDITION}}}
}


def test_evaluate_passes_every_option(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import paretune.evaluation

    spy = Spy(EVALUATED)
    monkeypatch.setattr(paretune.evaluation, "evaluate", spy)
    done = invoke("evaluate", "p", "q", "--data", "d", "--out", "o")
    assert done.exit_code == 0, done.output
    assert ([*map(str, spy.arguments[0])], *map(str, spy.arguments[1:])) == (["p", "q"], "d", "o")
    plain = dict(conditions=None, objectives=None, max_prompts=None, max_new_tokens=None, seed=0, overwrite=False)
    plain |= dict(split="test", bootstrap=1000, control_prompts=16, progress=NO_PROGRESS, allow_overlap=False)
    plain |= dict(weights=None, profiles=None, reference=None, judge_with=None, include_base=False, card=False)
    assert spy.options == plain
    for text in ("Sensing helps.", "It beats the mean.", "The head is the limit.", "sensed", "0.250", "report.html"):
        assert text in done.stdout
    options = "--condition none --objective joy --max-prompts 5 --max-new-tokens 6 --seed 7 --split all --bootstrap 8"
    compared = "--weights grid --weights joy=1 --profile joy=.5 --reference joy=.1 --judge-with joy=embed:relevance"
    compared += " --with-base --card"
    done = invoke(
        "evaluate",
        "p",
        "--data",
        "d",
        "--out",
        "o",
        *options.split(),
        "--control-prompts",
        0,
        "--overwrite",
        "--allow-overlap",
        *compared.split(),
        "--json",
    )
    changed = dict(conditions=["none"], objectives=["joy"], max_prompts=5, max_new_tokens=6, seed=7, overwrite=True)
    changed |= dict(split="all", bootstrap=8, control_prompts=0, allow_overlap=True, include_base=True, card=True)
    changed |= dict(weights=["grid", "joy=1"], profiles=["joy=.5"], reference={"joy": 0.1})
    assert spy.options == plain | changed | dict(judge_with=["joy=embed:relevance"])
    assert json.loads(done.stdout) == EVALUATED


def _policy(profiles: list[dict[str, float]], interval: dict[str, tuple[float, float]] | None = None) -> Any:
    from paretune.policy import Generation

    answers = [
        Generation(f"answer {at}", profile=own, sensed=own, tokens=2, finished=True, interval=interval)
        for at, own in enumerate(profiles)
    ]
    names = [SimpleNamespace(name="brevity"), SimpleNamespace(name="joy")]
    sensed = [SimpleNamespace(profile=own, interval=interval) for own in profiles]
    return SimpleNamespace(objectives=names, predict=Spy(sensed), generate=Spy(answers))


def _lies_in_a_folder(monkeypatch: pytest.MonkeyPatch, policy: Any) -> None:
    monkeypatch.setattr("paretune.policy.load_policy", Spy(policy))
    monkeypatch.setattr("paretune.policy.folder.read_objectives", Spy(policy.objectives))


def test_sense_prints_bars_or_json(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy([{"brevity": 0.5, "joy": 1.0}])
    _lies_in_a_folder(monkeypatch, policy)
    done = invoke("sense", "p", "--prompt", "Hi", "--pin", "joy=1")
    assert policy.predict.arguments == ([[{"role": "user", "content": "Hi"}]], {"joy": 1.0})
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["brevity", "joy"]
    assert done.stdout.splitlines()[1].endswith("1.00  pinned")
    done = invoke("sense", "p", "--prompt", "Hi", "--json")
    record = {"id": "row-1", "prompt": "Hi", "profile": {"brevity": 0.5, "joy": 1.0}, "interval": None}
    assert json.loads(done.stdout) == {"profiles": [record]}


def test_sense_shows_intervals_of_what_is_not_pinned(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy([{"brevity": 0.71, "joy": 1.0}], {"brevity": (0.4, 0.9), "joy": (1.0, 1.0)})
    _lies_in_a_folder(monkeypatch, policy)
    lines = invoke("sense", "p", "--prompt", "Hi", "--pin", "joy=1").stdout.splitlines()
    assert lines[0].endswith("0.71 [0.40, 0.90]") and lines[1].endswith("1.00  pinned")
    record = json.loads(invoke("sense", "p", "--prompt", "Hi", "--json").stdout)["profiles"][0]
    assert record["interval"] == {"brevity": [0.4, 0.9], "joy": [1.0, 1.0]}


def test_sense_and_generate_write_json_lines(invoke: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy = _policy([{"brevity": 0.5, "joy": 1.0}, {"brevity": 0.25, "joy": 0.0}])
    _lies_in_a_folder(monkeypatch, policy)
    (tmp_path / "p.txt").write_text("One?\nTwo?\n")
    for verb, key in (("sense", "profile"), ("generate", "text")):
        out = tmp_path / f"{verb}.jsonl"
        done = invoke(verb, "p", "--prompts", tmp_path / "p.txt", "--out", out)
        assert done.exit_code == 0, done.output
        records = [json.loads(line) for line in out.read_text().splitlines()]
        assert [record["prompt"] for record in records] == ["One?", "Two?"] and all(key in record for record in records)
        done = invoke(verb, "p", "--prompts", tmp_path / "p.txt", "--out", out)
        assert done.exit_code == 2 and "--overwrite" in done.stderr
        done = invoke(verb, "p", "--prompts", tmp_path / "p.txt", "--out", out, "--overwrite", "--json")
        assert json.loads(done.stdout) == {"rows": 2, "out": str(out)}


def test_generate_passes_every_option(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy([{"brevity": 0.5, "joy": 1.0}])
    _lies_in_a_folder(monkeypatch, policy)
    done = invoke("generate", "p", "--prompt", "Hi")
    assert done.stdout == "answer 0\n"
    plain = dict(condition=None, pins=None, max_new_tokens=128, temperature=0.0, top_p=1.0, seed=0, batch_size=64)
    plain |= dict(weights=None, progress=NO_PROGRESS)
    assert policy.generate.options == plain
    options = "--pin joy=0.5 --condition mean --max-new-tokens 3 --temperature 0.5 --top-p 0.9 --seed 4 --batch-size 2"
    done = invoke("generate", "p", "--prompt", "Hi", *options.split(), "--json")
    changed = dict(condition="mean", pins={"joy": 0.5}, max_new_tokens=3, temperature=0.5, top_p=0.9, seed=4)
    assert policy.generate.options == plain | changed | dict(batch_size=2)
    assert json.loads(done.stdout)["answers"][0]["text"] == "answer 0"
    invoke("generate", "p", "--prompt", "Hi", "--weights", "joy=.7,brevity=.3")
    assert policy.generate.options == plain | dict(weights={"brevity": 0.3, "joy": 0.7})


def test_answers_cannot_steer_the_terminal(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = _policy([{"brevity": 0.5, "joy": 1.0}])
    policy.generate.result = [replace(policy.generate.result[0], text="a\x1b[31mb")]
    _lies_in_a_folder(monkeypatch, policy)
    assert "\x1b" not in invoke("generate", "p", "--prompt", "Hi").stdout


def test_demo_passes_every_option(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import paretune.demo as demo

    spy = Spy(SimpleNamespace(summary=lambda: "It works.", to_dict=lambda: {"ok": True}))
    monkeypatch.setattr(demo, "run", spy)
    assert invoke("demo").stdout == "It works.\n"
    assert spy.arguments == (Path("runs/demo"),) and spy.options == dict(fast=False, seed=0, progress=NO_PROGRESS)
    done = invoke("demo", "--out", "x", "--fast", "--seed", 2, "--json")
    assert spy.arguments == (Path("x"),) and spy.options == dict(fast=True, seed=2, progress=NO_PROGRESS)
    assert json.loads(done.stdout) == {"ok": True}


def test_methods_and_objectives_are_listed(invoke: Any) -> None:
    done = invoke("methods")
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {"sga", "sft", "dpo"}
    assert {method["name"] for method in json.loads(invoke("methods", "--json").stdout)["methods"]} >= {
        "sga",
        "sft",
        "dpo",
    }
    assert "lexical:brevity" in invoke("objectives").stdout
    specs = [item["spec"] for item in json.loads(invoke("objectives", "--json").stdout)["objectives"]]
    assert "column:NAME" in specs


TABLE = "name,quality,seconds\na,1,2\nb,2,3\nc,0,5\n"


def test_front_prints_volume_reference_and_front(invoke: Any, tmp_path: Path) -> None:
    points = tmp_path / "points.csv"
    points.write_text(TABLE)
    asked = ["front", points, "--maximise", "quality", "--minimise", "seconds"]
    found = json.loads(invoke(*asked, "--reference", "quality=0,seconds=6", "--json").stdout)
    assert found["hypervolume"] == 7.0  # 1 x (6 - 2) + (2 - 1) x (6 - 3)
    assert [point["row"]["name"] for point in found["front"]] == ["a", "b"]
    assert found == json.loads(invoke(*asked, "--reference", "0,6", "--json").stdout)
    shown = invoke(*asked, "--reference", "0,6").stdout.splitlines()
    assert shown[0].startswith("hypervolume  7  (reference quality=0, seconds=6")
    assert shown[1] == "front        2 of 3 points"
    assert [line.split()[0] for line in shown[2:]] == ["name", "a", "b"]


def test_front_draws(invoke: Any, tmp_path: Path) -> None:
    points, plot = tmp_path / "points.csv", tmp_path / "front.png"
    points.write_text(TABLE)
    asked = ["front", points, "--maximise", "quality", "--minimise", "seconds", "--plot", plot, "--label", "name"]
    assert invoke(*asked).exit_code == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert invoke(*asked).exit_code == 2  # it is there now
    assert invoke(*asked, "--overwrite").exit_code == 0


def test_score_measures_and_shows(invoke: Any, tmp_path: Path, write_rows_file: Any) -> None:
    rows = write_rows_file({"prompt": "Hi", "completions": ["one two", "one", "one two three four"]})
    out = tmp_path / "scored.jsonl"
    done = invoke(
        "score", rows, "--objective", "brevity=lexical:brevity", "--objective", "-size=lexical:length", "--out", out
    )
    assert done.exit_code == 0, done.output
    row = json.loads(out.read_text())
    assert [each["scores"]["brevity"] for each in row["completions"]] == [-2.0, -1.0, -4.0]
    kept = json.loads((tmp_path / "scored.objectives.json").read_text())["objectives"]
    assert [(each["name"], each["direction"]) for each in kept] == [("brevity", "maximise"), ("size", "minimise")]
    assert "3 completions of 1 rows" in done.stdout and "-2.000" in done.stdout and "warning:" in done.stdout
    done = invoke("score", rows, "--objective", "b=lexical:brevity", "--out", tmp_path / "again.jsonl", "--json")
    assert json.loads(done.stdout)["objectives"][0]["quantiles"]["0.5"] == -2.0
