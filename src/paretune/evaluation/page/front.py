"""The front as the reader sees it: a chart of points over two objectives, and every point in a table.

Without the script the chart is a drawing of the first two objectives. The script (`report.js`) redraws it over any two
objectives the reader chooses, a third as size, with points to hover, touch or reach by keyboard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paretune.evaluation.charts import escape, interval, line, number, short, svg, text, ticks
from paretune.evaluation.conditions import MEANING
from paretune.evaluation.markup import numeric, paragraph, table
from paretune.evaluation.page.assets import island
from paretune.evaluation.page.shapes import colour, drawn, icon, shape
from paretune.pareto import non_dominated
from paretune.pareto.labels import place_labels

Metrics = Mapping[str, Any]
_KINDS = {"natural": "as it answers by itself", "weights": "asked by weights", "profile": "asked by a profile"}
_SIDE_X, _SIDE_Y, _LEFT, _TOP, _BOTTOM = 292, 214, 44, 18, 40
_LABELS = 12
_SHOWN = 600


@dataclass(frozen=True)
class Plot:
    """A front to draw. `key` is distinct in the page; `owner` is whose the points are that name no policy of their
    own; `policies` are all of the report, for a policy keeps its colour and shape throughout it; `examples` are
    a prompt and an answer by the name of a point; `listed` asks for the table of all points."""

    key: str
    title: str
    objectives: Sequence[str]
    points: Sequence[Metrics]
    policies: Sequence[str]
    owner: str = ""
    examples: Mapping[str, Metrics] = field(default_factory=dict)
    listed: bool = True

    def place(self, point: Metrics) -> int:
        """The place of the point's policy in the report."""
        name = point.get("policy") or self.owner
        return self.policies.index(name) if name in self.policies else 0

    @property
    def present(self) -> list[int]:
        """The places of the policies that have a point here."""
        return sorted({self.place(point) for point in self.points})


def is_natural(point: Metrics) -> bool:
    """Is this a policy's own way of answering, rather than what it was asked for in a sweep?"""
    return point.get("kind") not in ("weights", "profile")


def front_facts(front: Metrics) -> str:
    """Hypervolume with its reference point, gaps, and which points nothing dominates, as HTML."""
    reference = ", ".join(f"{name} = {value:g}" for name, value in front["reference"].items())
    volume = front["hypervolume"]
    found = f"Hypervolume {interval(volume)} from the reference point {reference} ({front['reference_rule']})"
    found += f"; {front['prompts']} prompts." if front.get("prompts") is not None else "."
    if volume["value"] is None and volume.get("why"):
        found = f"Hypervolume undefined: {volume['why']}. Reference point {reference} ({front['reference_rule']})."
    gaps = [f"{name} {number(front[name], 4)}" for name in ("sparsity", "spacing") if front.get(name) is not None]
    if gaps:
        found += f" {', '.join(gaps).capitalize()}."
    parts = [paragraph(found)]
    if front["points"]:
        kept = ", ".join(_full_name(point) for point in front["points"] if point["on_front"])
        parts.append(paragraph(f"On the front (no other point is as good in all and better in one): {kept}."))
    return "".join(parts)


def _full_name(point: Metrics) -> str:
    owner = point.get("policy")
    return f"{owner}: {point['name']}" if owner and owner != point["name"] else str(point["name"])


def front_figure(plot: Plot) -> str:
    """The chart with its controls, and the table of all points; the table alone for a single objective."""
    if not plot.points:
        return ""
    points = _table(plot) if plot.listed else ""
    if len(plot.objectives) < 2:
        return points
    several = len(plot.present) > 1
    legend = ""
    if several:
        items = "".join(f'<li data-policy="{i}">{icon(i)}{escape(plot.policies[i])}</li>' for i in plot.present)
        legend = f'<ul class="legend" aria-label="Policies">{items}</ul>'
    caption = (
        "Mean normalised scores; up and right is better. Filled: on the front of all objectives together; hollow: some "
        "other point is as good in all and better in one. The line joins what is best in the two objectives shown."
    )
    if not all(is_natural(point) for point in plot.points):
        caption += " Large: a policy's own way of answering; small: asked by weights or a profile."
    return (
        f'<figure class="front" id="{plot.key}">{_controls(plot)}{legend}'
        f'<div class="stage"><div class="plot">{_drawing(plot)}</div>'
        f'<div class="detail" aria-live="polite" hidden></div></div>'
        f"<figcaption>{escape(caption)}</figcaption>{island(_data(plot))}</figure>{points}"
    )


def _controls(plot: Plot) -> str:
    """Native selects, shown by the script that serves them."""

    def select(name: str, label: str, chosen: int, first: str = "") -> str:
        options = f'<option value="">{first}</option>' if first else ""
        for index, objective in enumerate(plot.objectives):
            picked = " selected" if index == chosen else ""
            options += f'<option value="{escape(objective)}"{picked}>{escape(objective)}</option>'
        return f'<label>{label} <select name="{name}">{options}</select></label>'

    selects = [select("across", "Across", 0), select("up", "Up", 1)]
    if len(plot.objectives) > 2:
        selects.append(select("size", "Size", -1, "the same for all"))
    return f'<form class="controls" hidden>{"".join(selects)}</form>'


def _data(plot: Plot) -> dict[str, Any]:
    """What the script draws from."""
    points = []
    for point in plot.points:
        example = point.get("example") or plot.examples.get(point["name"]) or {}
        asked, answer = prompt_text(example.get("prompt")), str(example.get("answer") or "")
        points.append(
            {
                "name": point["name"],
                "full": _full_name(point),
                "policy": plot.place(point),
                "about": _about(point),
                "large": is_natural(point),
                "values": [point["values"].get(name) for name in plot.objectives],
                "front": bool(point["on_front"]),
                "prompt": short(asked, _SHOWN),
                "answer": short(answer, _SHOWN),
            }
        )
    marks = {str(i): {"colour": colour(i), "shape": shape(i), "name": plot.policies[i]} for i in plot.present}
    return {"title": plot.title, "objectives": list(plot.objectives), "policies": marks, "points": points}


def _about(point: Metrics) -> str:
    kind = point.get("kind")
    if kind:
        return _KINDS.get(kind, str(kind))
    return f"given {MEANING[point['name']]}" if point["name"] in MEANING else ""


def prompt_text(prompt: Any) -> str:
    """The user's last words of a prompt given as text or as messages."""
    if not prompt:
        return ""
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def _drawing(plot: Plot) -> str:
    """The first two objectives, for a page without a script."""
    names = list(plot.objectives[:2])
    shown = [p for p in plot.points if all(p["values"].get(name) is not None for name in names)]
    if not shown:
        return '<p class="muted">Nothing to draw: no point has a value.</p>'
    pairs = [[point["values"][name] for name in names] for point in shown]
    (low_x, high_x), (low_y, high_y) = (_padded([pair[i] for pair in pairs]) for i in (0, 1))
    right, bottom = _LEFT + _SIDE_X, _TOP + _SIDE_Y

    def place(pair: Sequence[float]) -> tuple[float, float]:
        x = _LEFT + (pair[0] - low_x) / (high_x - low_x) * _SIDE_X
        return x, _TOP + (high_y - pair[1]) / (high_y - low_y) * _SIDE_Y

    body = []
    for tick in ticks(low_x, high_x):
        x, _ = place([tick, low_y])
        body.append(line(x, _TOP, x, bottom, "rule") + text(x, bottom + 15, f"{tick:g}", "tick", "middle"))
    for tick in ticks(low_y, high_y):
        _, y = place([low_x, tick])
        body.append(line(_LEFT, y, right, y, "rule") + text(_LEFT - 6, y + 4, f"{tick:g}", "tick", "end"))
    body.append(text((_LEFT + right) / 2, bottom + 33, f"{names[0]} →", "tick", "middle"))
    body.append(text(2, _TOP - 6, f"↑ {names[1]}", "tick"))
    places = [place(pair) for pair in pairs]
    best = [spot for spot, kept in zip(places, non_dominated(pairs), strict=True) if kept]
    body.append(f'<path class="stairs" d="{_stairs(best, _LEFT, bottom)}"/>')
    for point, (x, y) in zip(shown, places, strict=True):
        full = "full" if point["on_front"] else ""
        radius = 6.5 if is_natural(point) else 4.5
        body.append(drawn(plot.place(point), x, y, radius, full))
    body += _labels(shown, places, (_LEFT, _TOP, right + 20, bottom))
    said = "; ".join(
        f"{_full_name(p)} {number(pair[0])}, {number(pair[1])}{' (on the front)' if p['on_front'] else ''}"
        for p, pair in zip(shown, pairs, strict=True)
    )
    label = f"{plot.title}, {names[0]} and {names[1]}: {said}"
    return svg(bottom + _BOTTOM, label, body, right + 24)


def _labels(
    points: Sequence[Metrics], places: Sequence[tuple[float, float]], bounds: tuple[float, float, float, float]
) -> list[str]:
    """Names of the large points, if they are few; a line to its point where a name had to move."""
    large = [i for i, point in enumerate(points) if is_natural(point)]
    if len(large) > _LABELS:
        return []
    names = [short(str(points[i].get("policy") or points[i]["name"]), 22) for i in large]
    widths = [6.8 * len(name) for name in names]
    body = []
    found = place_labels([places[i] for i in large], widths, 14, bounds, 10.0)
    for i, name, (at_x, at_y), width in zip(large, names, found, widths, strict=True):
        x, y = places[i]
        if abs(at_y - y) > 1:
            body.append(line(x, y, at_x if at_x > x else at_x + width, at_y, "leader"))
        body.append(text(at_x, at_y + 4, name, "label"))
    return body


def _stairs(places: Sequence[tuple[float, float]], left: float, bottom: float) -> str:
    """The edge of what is reached by at least one of these points, as a path."""
    ordered = sorted(places, key=lambda spot: (spot[0], spot[1]))
    steps = [f"M{left:.1f},{ordered[0][1]:.1f}"]
    for (x, _), following in zip(ordered, [*ordered[1:], None], strict=True):
        steps.append(f"H{x:.1f}V{(following[1] if following else bottom):.1f}")
    return "".join(steps)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = (high - low) * 0.15 or 0.05
    return low - pad, high + pad


def _table(plot: Plot) -> str:
    """Every point with its values."""
    several = any(point.get("policy") for point in plot.points)
    rows = []
    for point in plot.points:
        row: list[object] = [point["name"], *([point.get("policy") or ""] if several else []), _about(point)]
        row += [numeric(point["values"].get(name)) for name in plot.objectives]
        rows.append([*row, "yes" if point["on_front"] else "no"])
    header = ["Point", *(["Policy"] if several else []), "What it is", *plot.objectives, "On the front"]
    return table(header, rows, f"{plot.title}: all points", kind="sortable")
