"""report.html: what was measured, for somebody who was not there. Verdict first, no scripts, no outside resource.

Everything that comes from models, data or the user is escaped as text; a content security policy forbids scripts and
outside resources besides. A policy's sections are in `sections.py`, charts in `charts.py`, the styles in `style.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paretune.evaluation.charts import escape, interval, number
from paretune.evaluation.markup import grid, paragraph, percent, table
from paretune.evaluation.sections import front_section, policy_sections
from paretune.evaluation.style import STYLE
from paretune.evaluation.verdict import RIVALS

Metrics = Mapping[str, Any]
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_HELPS = {True: "sensing helps", False: "not shown to help", None: "no verdict"}


def render(metrics: Metrics, samples: Mapping[str, Sequence[Metrics]]) -> str:
    """The whole page, from metrics.json's content and the sample prompts of each policy."""
    names = ", ".join(metrics["policies"])
    parts = [_comparison(metrics)] if metrics["comparison"] else []
    for name, own in metrics["policies"].items():
        inner = policy_sections(own, samples[name], metrics["settings"]["margin"])
        parts.append(f"<article><h2>{escape(name)}</h2>{inner}</article>")
    parts.append(_run(metrics))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(f"paretune evaluation: {names}")}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header><p class="eyebrow">paretune evaluation</p><h1>{escape(names)}</h1>
{paragraph(f"Data: {metrics['data']}", "muted")}</header>
{chr(10).join(parts)}
</main>
</body>
</html>
"""


def _comparison(metrics: Metrics) -> str:
    """The policies side by side, and their common front."""
    compared = metrics["comparison"]
    front = compared["front"]
    points = {point["name"]: point["values"] for point in (front["points"] if front else ())}
    rows = []
    for name, own in metrics["policies"].items():
        condition = compared["conditions"][name]
        row = [name, own["method"], own["test"]["prompts"], _HELPS[own["verdict"]["helps"]], condition]
        row.append(interval(own["conditions"][condition]["distance"]))
        row += [number(points[name][each]) if name in points else "–" for each in compared["objectives"]]
        rows.append([*row, _at_least_as_good(own["wins"][condition]["joint"])])
    header = ["Policy", "Method", "Prompts", "Verdict", "Answers", "Distance to target", *compared["objectives"]]
    header.append("At least as good as chosen in all")
    note = (
        f"Scores are means over the {compared['prompts']} prompts that all policies were tested on, by the first "
        "policy's scales; distances and shares are each policy's own"
    )
    note += "." if compared["same_prompts"] else ", over its own prompts, which are not the same for all."
    parts = [table(header, rows, "Policies compared"), paragraph(note, "muted"), front_section(front, "Common front")]
    return f"<article><h2>Comparison</h2>{''.join(parts)}</article>"


def _at_least_as_good(joint: Metrics) -> str:
    if joint["win"]["value"] is None:
        return "–"
    return percent(joint["win"]["value"] + joint["tie"]["value"])


def _run(metrics: Metrics) -> str:
    """How to repeat it: command, settings, versions."""
    settings = [
        [key.replace("_", " "), "default" if value is None else ", ".join(value) if isinstance(value, list) else value]
        for key, value in metrics["settings"].items()
    ]
    tables = [
        table(["Setting", "Value"], settings, "Settings"),
        table(["Package", "Version"], list(metrics["versions"].items()), "Versions"),
    ]
    note = (
        f"Intervals: 95% percentile bootstrap over prompts ({metrics['settings']['bootstrap']} resamples); "
        f"the verdict compares sensed with {', '.join(RIVALS)}. All numbers are in metrics.json, every answer is in "
        "answers.jsonl."
    )
    return (
        f"<article><h2>How this was made</h2>{paragraph('Run again with:')}<pre>{escape(metrics['command'])}</pre>"
        f"{grid(tables)}{paragraph(note, 'muted')}</article>"
    )
