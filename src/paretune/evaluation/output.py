"""The output folder: metrics.json, answers.jsonl, report.html, front.png and a card a policy, whole or not at all."""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paretune.evaluation.card import card_names, render_card
from paretune.evaluation.charts import interval, number
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
    told = settings.to_dict()
    for flag, key in (("--weights", "weights"), ("--profile", "profiles"), ("--judge-with", "judge_with")):
        for item in told[key] or ():
            words += [flag, item]
    words += ["--reference", ",".join(told["reference"])] if told["reference"] else []
    words += ["--with-base"] if settings.include_base else []
    words += ["--card"] if settings.card else []
    words += ["--allow-overlap"] if settings.allow_overlap else []
    return shlex.join(words)


def _records(done: Mapping[str, Evaluated]) -> Iterator[dict[str, Any]]:
    """The lines of answers.jsonl: every answer with what it was asked for, under which condition, and its scores."""
    for name, each in done.items():
        for condition, answers in each.answers.items():
            for i in range(len(each.test.pairs)):
                yield {"policy": name, "condition": condition, **_record(each, answers.scored, i, i)}
        for point in each.further_points:
            asked = {"point": point.ask.name, point.ask.kind: point.ask.asked}
            for i in range(len(each.test.pairs)):
                yield {"policy": name, "condition": "sweep", **asked, **_record(each, point.scored, i, i)}
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
        # by a policy of several adapters: by `nearest` they are not those asked for
        **({"answered_weights": generation.weights} if generation.weights is not None else {}),
    }


def write(metrics: dict[str, Any], done: Mapping[str, Evaluated], out: Path | str, overwrite: bool) -> dict[str, str]:
    """The folder, whole or not at all; returns the text of each policy's card."""
    json.dumps(metrics, allow_nan=False)  # NaN is refused before anything is written
    samples = {name: samples_of(each, SAMPLES) for name, each in done.items()}
    cards = {name: render_card(name, metrics) for name in done}
    with atomic_folder(out, overwrite=overwrite) as work:
        write_json(work / "metrics.json", metrics)
        write_jsonl(work / "answers.jsonl", _records(done))
        write_text(work / "report.html", render(metrics, samples))
        for name, file in card_names(list(done)).items():
            write_text(work / file, cards[name])
        _plot(metrics, work / "front.png")
    return cards


def _plot(metrics: Mapping[str, Any], path: Path) -> None:
    """front.png: all points of a comparison, else the policy's conditions and sweep, or why nothing is drawn."""
    if metrics["comparison"]:
        front = metrics["comparison"]["front"]
        points = [(point["values"], _label(point)) for point in front["points"]]
    else:
        (own,) = metrics["policies"].values()
        front = own["front"]
        points = [(point["values"], point["name"]) for point in (front or {"points": ()})["points"]]
        if own["sweep"] and own["front_set"]:
            points += [
                (point["values"], point["name"]) for point in own["front_set"]["points"] if point["kind"] != "natural"
            ]
    if not points:
        plot_message("No objective could be scored on the answers, so there is no front.", path)
        return
    names = front["objectives"]
    values = np.array([[point[name] for name in names] for point, _ in points])
    plot_points(values, path, names=names, labels=[label for _, label in points], title="Mean normalised scores")


def _label(point: Mapping[str, Any]) -> str:
    """A natural point's policy; a sweep's point is named on the front only, or nothing could be read."""
    if point["kind"] == "natural":
        return str(point["policy"])
    return f"{point['policy']}: {point['name']}" if point["on_front"] else ""


HEADER = ("policy", "answers", "multi win", "joint win", "hypervolume", "distance", "words", "train s", "models")
"""The table of methods' columns."""


def methods_table(metrics: Mapping[str, Any]) -> list[list[Any]]:
    """The policies of a comparison a line each, under `HEADER`; None where there is no value."""
    rows = []
    for name, own in metrics["comparison"]["policies"].items():
        cost = metrics["policies"][name]["cost"]
        figures = [own[key]["value"] for key in ("hypervolume", "distance", "words")]
        row = [name, own["condition"], own["multi_win"]["value"], own["joint"]["win"]["value"], *figures]
        rows.append([*row, cost["train_seconds"], cost["models_at_inference"]])
    return rows


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
        for point in own["sweep"]:
            lines.append(f"  asked for {point['name']}: multi win {interval(point['multi_win'], 2)}")
        if own["sweep"] and own["front_set"]:
            lines.append(f"  hypervolume of the sweep {interval(own['front_set']['hypervolume'])}")
        lines += [f"  {each['claim']}" for each in own["held_out"] or ()]
    return lines + (_compared(metrics) if metrics["comparison"] else [])


def _compared(metrics: Mapping[str, Any]) -> list[str]:
    """The table of methods, and what it shows."""
    compared = metrics["comparison"]
    lines = [f"Compared on {compared['prompts']} common prompts:"]
    for row in methods_table(metrics):
        cells = [f"{key} {_cell(value)}" for key, value in zip(HEADER[1:], row[1:], strict=True)]
        lines.append(f"  {row[0]}: {', '.join(cells)}")
    return lines + [f"  {each}" for each in (*compared["claims"], *compared["notes"])]


def _cell(value: Any) -> str:
    return number(value) if value is None or isinstance(value, float) else str(value)
