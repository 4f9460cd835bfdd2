"""The output folder: metrics.json, answers.jsonl, report.html, front.png, whole or not at all; and a short summary."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paretune.evaluation.charts import interval
from paretune.evaluation.conditions import clean
from paretune.evaluation.report import render
from paretune.evaluation.result import Evaluated, Settings
from paretune.evaluation.samples import samples_of
from paretune.evaluation.scoring import Scored
from paretune.files import atomic_folder, installed_version, write_json, write_jsonl, write_text
from paretune.pareto.plot import plot_message, plot_points

SAMPLES = 8
_PACKAGES = ("paretune", "torch", "transformers", "peft", "numpy", "moocore")


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    return {"python": platform.python_version(), **{name: installed_version(name) for name in _PACKAGES}}


def command(folders: Sequence[Path], data: Path | str, out: Path | str, settings: Settings) -> str:
    """The command line that repeats the run."""
    words = ["paretune", "evaluate", *map(str, folders), "--data", str(data), "--out", str(out)]
    for condition in settings.conditions or ():
        words += ["--condition", condition]
    for item in settings.to_dict()["objectives"] or ():
        words += ["--objective", item]
    for flag, value in (("--max-prompts", settings.max_prompts), ("--max-new-tokens", settings.max_new_tokens)):
        words += [flag, str(value)] if value is not None else []
    words += [
        "--control-prompts",
        str(settings.control_prompts),
        "--split",
        settings.split,
        "--bootstrap",
        str(settings.bootstrap),
        "--seed",
        str(settings.seed),
    ]
    words += ["--allow-overlap"] if settings.allow_overlap else []
    return shlex.join(words)


def _records(done: Mapping[str, Evaluated]) -> Iterator[dict[str, Any]]:
    """The lines of answers.jsonl: every answer with what it was asked for, under which condition, and its scores."""
    for name, each in done.items():
        for condition, answers in each.answers.items():
            for i in range(len(each.test.pairs)):
                yield {"policy": name, "condition": condition, **_record(each, answers.scored, i, i)}
        for step in each.steps:
            for position, i in enumerate(each.swept):
                pin = {step.objective: step.requested}
                yield {"policy": name, "condition": "control", "pin": pin, **_record(each, step.scored, position, i)}


def _record(each: Evaluated, scored: Scored, position: int, i: int) -> dict[str, Any]:
    generation, pair = scored.generations[position], each.test.pairs[i]
    values = {
        objective.name: (float(value) if np.isfinite(value) else None)
        for objective, value in zip(each.scored, scored.values[position], strict=True)
    }
    return {
        "id": pair.row.id,
        "prompt": [{key: clean(text) for key, text in message.items()} for message in pair.row.prompt],
        "profile": generation.profile,
        "sensed": generation.sensed,
        "target": each.test.targets[i],
        "answer": scored.texts[position],
        "scores": scored.raw[position],
        "values": values,
        "tokens": generation.tokens,
        "finished": generation.finished,
    }


def write(metrics: dict[str, Any], done: Mapping[str, Evaluated], out: Path | str, overwrite: bool) -> None:
    """The folder, whole or not at all."""
    json.dumps(metrics, allow_nan=False)  # NaN is refused before anything is written
    samples = {name: samples_of(each, SAMPLES) for name, each in done.items()}
    with atomic_folder(out, overwrite=overwrite) as work:
        write_json(work / "metrics.json", metrics)
        write_jsonl(work / "answers.jsonl", _records(done))
        write_text(work / "report.html", render(metrics, samples))
        _plot(metrics, work / "front.png")


def _plot(metrics: Mapping[str, Any], path: Path) -> None:
    """front.png: every policy's conditions, or why there is nothing to draw."""
    fronts = {name: each["front"] for name, each in metrics["policies"].items()}
    names = next((front["objectives"] for front in fronts.values() if front and front["points"]), None)
    points, labels = [], []
    for policy, front in fronts.items():
        if front and front["objectives"] == names:
            for point in front["points"]:
                points.append([point["values"][name] for name in names])
                labels.append(point["name"] if len(fronts) == 1 else f"{policy}: {point['name']}")
    if not points or names is None:
        plot_message("No objective could be scored on the answers, so there is no front.", path)
        return
    plot_points(np.array(points), path, names=names, labels=labels, title="Mean normalised scores")


def describe(metrics: Mapping[str, Any]) -> list[str]:
    """The metrics in a few lines for a terminal: per policy the verdict, distances, head and control."""
    lines = []
    for name, own in metrics["policies"].items():
        verdict, test = own["verdict"], own["test"]
        lines += [f"{name} ({own['method']}, {test['prompts']} prompts: {test['source']})", f"  {verdict['headline']}"]
        lines += [f"  {text}" for text in (verdict["text"], *verdict["limits"]) if text]
        for condition, each in own["conditions"].items():
            gap = own["differences"].get(condition)
            against = f"   minus sensed {interval(gap)}" if gap else ""
            lines.append(f"  {condition:<9} distance to target {interval(each['distance'])}{against}")
        for objective, each in (own["head"] or {}).items():
            said = ", ".join(
                f"{key} {interval(each[key]['r2'], 2)}" for key in ("head", "probe", "constant") if key in each
            )
            held = each.get("interval")
            share = f"; its {100 * held['level']:.0f}% interval holds {interval(held['coverage'], 2)}" if held else ""
            lines.append(f"  R2 of {objective}: {said}{share}")
        for objective, each in (own["control"] or {}).items():
            lines.append(
                f"  control of {objective}: Spearman of requested and obtained {interval(each['spearman'], 2)}, "
                f"within prompts {interval(each['spearman_within'], 2)}"
            )
        if own["control_accuracy"]:
            lines.append(f"  control accuracy {interval(own['control_accuracy'], 2)} (0.5 is none)")
    return lines
