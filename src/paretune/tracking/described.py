"""What the files of a run say of it: method, base, data, settings, versions, metrics; and what an evaluation found.

A run is a policy's folder or a reward model's, or what an unfinished training keeps beside the place where one is to
be. Only JSON is read here, no model and no torch, so that runs are listed at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from paretune.errors import InputError
from paretune.files import holder, read_json

POLICY, REWARD, METRICS, REPORT = "policy.json", "reward.json", "metrics.json", "report.html"
LONG = 80
"""Characters of a value; what is longer stands as a digest."""
TAIL = 1 << 16
"""Bytes at the end of a log that its last record is looked for in."""
LARGEST_REPORT = 64 << 20

State = Literal["training", "interrupted", "done", "evaluated", "broken"]
SECTIONS = ("method", "base", "data", "objectives", "settings", "renderer", "versions", "metrics")


@dataclass
class Run:
    """One run, as its files describe it.

    folder: where its output is, or is to be. kind: `policy`, `reward model` or `improve` (unfinished rounds).
    step, steps: of the training (rounds for `improve`); None where nobody has written it down. when: Unix seconds of
    the last change. told: by section (`SECTIONS`), flat. evaluations: figures of each report on it. problem: what of it
    cannot be read.
    """

    folder: Path
    kind: str
    state: State
    step: int | None = None
    steps: int | None = None
    when: float = 0.0
    bytes: int = 0
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    problem: str | None = None

    @property
    def method(self) -> str | None:
        """The method that trains it."""
        return self.told.get("method", {}).get("method")

    @property
    def unfinished(self) -> bool:
        """Whether its training has not ended."""
        return self.state in ("training", "interrupted")


def flat(values: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Nested values under dotted names; a list is told as its JSON, a long value as its digest."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping) and value:
            out |= flat(value, f"{name}.")
        elif value is None or isinstance(value, (bool, int, float)):
            out[name] = value
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            out[name] = text if len(text) <= LONG or isinstance(value, str) else _digest(value, text)
    return out


def _digest(value: Any, text: str) -> str:
    return f"{len(value)} values, sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]}"


def finished(folder: Path) -> Run:
    """The run whose output is in `folder`, a policy's or a reward model's; `broken` where its files cannot be read."""
    policy = (folder / POLICY).is_file()
    run = Run(folder, "policy" if policy else "reward model", "done")
    description = folder / (POLICY if policy else REWARD)
    try:
        run.when = description.stat().st_mtime
        described = _mapping(description)
        metrics = _mapping(folder / METRICS)
        run.told = _sections(described, metrics, run.kind)
    except (InputError, OSError) as error:
        run.state, run.problem = "broken", str(error)
        return run
    steps = metrics.get("steps")
    run.step = run.steps = int(steps) if isinstance(steps, (int, float)) else None
    return run


def _mapping(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise InputError("must be a JSON object", file=path)
    return found


def _sections(described: Mapping[str, Any], metrics: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    base = {"model": "base_model", "fingerprint": "base_fingerprint", "dtype": "dtype"}
    prompts = described.get("train_prompts")
    parts: dict[str, dict[str, Any]] = {
        "method": {"method": described.get("method", kind)},
        "base": {name: described.get(key) for name, key in base.items()},
        "data": _own(described.get("data")) | ({"train_prompts": prompts} if prompts else {}),
        "objectives": _objectives(described.get("objectives")),
        "settings": _own(described.get("config")),
        "renderer": _own(described.get("renderer")),
        "versions": _own(described.get("versions")),
        "metrics": dict(metrics),
    }
    return {name: flat(parts[name]) for name in SECTIONS}


def _own(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objectives(told: Any) -> dict[str, Any]:
    """Objectives by name, and their order; what each says of itself. `told`: a list of them, or by name."""
    listed = list(told.values()) if isinstance(told, dict) else told if isinstance(told, list) else []
    named = [each for each in listed if isinstance(each, dict) and "name" in each]
    order = {"order": [each["name"] for each in named]} if named else {}
    return order | {str(each["name"]): {key: each[key] for key in each if key != "name"} for each in named}


def unfinished(out: Path) -> Run | None:
    """What is kept beside `out` of a training or of rounds that have not ended; None where there is nothing."""
    try:
        return _unfinished(out)
    except FileNotFoundError:  # it has ended meanwhile, and taken its files along
        return None


def _unfinished(out: Path) -> Run | None:
    rounds, kept = out.with_name(f".{out.name}.improve"), out.with_name(f".{out.name}.checkpoints")
    at_work = holder(out.with_name(f".{out.name}.lock")) is not None
    steps = _saved_steps(kept)
    if (rounds / "improve.json").is_file():
        run = _rounds(out, rounds)
    elif steps:
        run = _training(out, kept, steps[-1])
    elif at_work:
        run = Run(out, "policy", "training", when=changed(out.with_name(f".{out.name}.lock")))
    else:
        return None
    if run.state != "broken":
        run.state = "training" if at_work else "interrupted"
    if at_work and run.kind == "policy":
        _live(out, run)
    return run


def _saved_steps(kept: Path) -> list[Path]:
    """The checkpoints of every part, the oldest first."""
    found = [each for each in (*kept.glob("step-*"), *kept.glob("part-*/step-*")) if each.name[5:].isdigit()]
    return sorted(found, key=lambda folder: (changed(folder), folder.name))


def changed(path: Path) -> float:
    """When a path was changed, in Unix seconds; 0 where it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:  # the training has removed it meanwhile
        return 0.0


def _training(out: Path, kept: Path, newest: Path) -> Run:
    run = Run(out, "policy", "interrupted", when=changed(newest))
    try:
        header = _mapping(kept / "training.json")
        numbers = _mapping(newest / "state.json")
    except InputError as error:
        run.state, run.problem = "broken", str(error)
        return run
    run.step, run.steps = numbers.get("step"), numbers.get("steps") or None
    if header.get("method") == "reward model":
        run.kind = "reward model"
    settings = _own(header.get("settings"))
    parts: dict[str, dict[str, Any]] = {
        "method": {"method": header.get("method")},
        "base": {"fingerprint": _at(header, "base", "fingerprint"), "dtype": settings.get("dtype")},
        "data": {"rows": header.get("rows")},
        "objectives": _objectives(header.get("objectives")),
        "settings": settings,
        "versions": _own(header.get("versions")),
    }
    run.told = {name: flat(parts.get(name, {})) for name in SECTIONS}
    return run


def _rounds(out: Path, work: Path) -> Run:
    done = sorted(work.glob("round-*/round.json"))
    run = Run(out, "improve", "interrupted", step=len(done), when=max(map(changed, (work, *work.iterdir(), *done))))
    try:
        header = _mapping(work / "improve.json")
    except InputError as error:
        run.state, run.problem = "broken", str(error)
        return run
    options = _own(header.get("options"))
    run.steps = options.get("rounds")
    parts: dict[str, dict[str, Any]] = {
        "method": {"method": "improve"},
        "data": {"rows": header.get("rows")},
        "settings": options,
        "versions": _own(header.get("versions")),
    }
    run.told = {name: flat(parts.get(name, {})) for name in SECTIONS}
    return run


def _live(out: Path, run: Run) -> None:
    """The step that a running training stands at, from the end of its log."""
    process = holder(out.with_name(f".{out.name}.lock"))
    log = out.with_name(f".{out.name}.{process}.train.jsonl")
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL))
            lines = file.read(TAIL).splitlines()
        run.when = max(run.when, changed(log))
    except OSError:  # a reward model's lies elsewhere
        return
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except ValueError:  # the first line of the tail, or one that is being written
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            run.step = record["step"]
            return


def evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """The figures of an evaluation's output folder, by the policies' folders as it names them; {} if it is none.

    Raises `InputError` where its metrics.json cannot be read.
    """
    path = folder / METRICS
    if not (folder / REPORT).is_file() or not path.is_file():
        return {}
    found = read_json(path, limit=LARGEST_REPORT)
    policies = _own(_own(found).get("policies"))
    out = {}
    for own in policies.values():
        if isinstance(own, dict) and isinstance(own.get("folder"), str):
            out[own["folder"]] = {"report": str(folder), "data": found.get("data"), **_figures(own)}
    return out


def _figures(own: Mapping[str, Any]) -> dict[str, Any]:
    """What of a policy's evaluation is compared: under the answers it gives of itself, and by condition."""
    natural = own.get("natural")
    figures = {
        "prompts": _at(own, "test", "prompts"),
        "answers": natural,
        "distance": _at(own, "conditions", natural, "distance", "value"),
        "multi_win": _at(own, "multi_win", natural, "value"),
        "hypervolume": _at(own, "front_set", "hypervolume", "value"),
        "control_accuracy": _at(own, "control_accuracy", "value"),
        "words": _at(own, "conditions", natural, "words", "value"),
        "verdict": _at(own, "verdict", "headline"),
    }
    for name, score in _own(_at(own, "conditions", natural, "scores")).items():
        figures[f"score.{name}"] = _at(score, "value")
    for condition, each in _own(own.get("conditions")).items():
        if condition != natural:
            figures[f"distance.{condition}"] = _at(each, "distance", "value")
    return {name: value for name, value in figures.items() if value is not None}


def _at(value: Any, *keys: Any) -> Any:
    """What lies at a path of keys; None where it leads nowhere."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
