"""report.html: what was measured, for somebody who was not there. One file, words first, nothing from outside.

Everything that comes from models, data or the user is inserted as text only. A content security policy lets in this
page's own style and script by their hashes, and nothing else (`page/assets.py`). One policy's sections are in
`sections.py`, those that compare in `page/compared.py`, charts in `charts.py` and `page/front.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paretune.evaluation.charts import escape
from paretune.evaluation.markup import Cell, grid, paragraph, table
from paretune.evaluation.page.assets import asset, content_policy
from paretune.evaluation.page.compared import comparison, found
from paretune.evaluation.page.glossary import glossary
from paretune.evaluation.page.shapes import definitions, icon
from paretune.evaluation.sections import policy_sections
from paretune.evaluation.verdict import RIVALS

Metrics = Mapping[str, Any]


def render(metrics: Metrics, samples: Mapping[str, Sequence[Metrics]]) -> str:
    """The whole page, from metrics.json's content and the sample prompts of each policy."""
    names = list(metrics["policies"])
    compared = bool(metrics["comparison"])
    title = ", ".join(names)
    heading = f"{len(names)} policies compared" if compared else title
    parts = [found(metrics), comparison(metrics, samples)] if compared else []
    for index, (name, own) in enumerate(metrics["policies"].items()):
        inner = policy_sections(name, own, samples.get(name, ()), metrics["settings"]["margin"], names)
        mark = icon(index) if compared else ""
        parts.append(f'<article id="policy-{index}"><h2>{mark}{escape(name)}</h2>{inner}</article>')
    parts.append(_run(metrics))
    about = [f"Policies: {title}."] if compared else []
    about.append(f"Data: {metrics['data']}")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{content_policy()}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(f"paretune evaluation: {title}")}</title>
<style>{asset("report.css")}</style>
</head>
<body>
{definitions()}
<header><p class="eyebrow">paretune evaluation</p><h1>{escape(heading)}</h1>
{"".join(paragraph(text, "muted") for text in about)}</header>
{_contents(names, compared)}
<main>
{chr(10).join(parts)}
</main>
<script>{asset("report.js")}</script>
</body>
</html>
"""


def _contents(names: Sequence[str], compared: bool) -> str:
    """Links to the parts of the page."""
    links = [("comparison", "Comparison")] if compared else []
    links += [(f"policy-{index}", name) for index, name in enumerate(names)]
    links.append(("made", "How this was made"))
    items = "".join(f'<li><a href="#{key}">{escape(label)}</a></li>' for key, label in links)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'


def _run(metrics: Metrics) -> str:
    """How to repeat it (command, settings, versions), and what the words mean."""
    settings = [[key.replace("_", " "), Cell(_told(value), kind="prose")] for key, value in metrics["settings"].items()]
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
        f'<article id="made"><h2>How this was made</h2><section>{paragraph("Run again with:")}'
        f"<pre>{escape(metrics['command'])}</pre>{grid(tables, 'two')}{paragraph(note, 'muted')}</section>"
        f"<section><h3>Words and figures</h3>{glossary()}</section></article>"
    )


def _told(value: Any) -> str:
    """A setting's value in words."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} = {each}" for key, each in value.items())
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)
