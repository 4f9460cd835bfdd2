"""Small charts as inline SVG text, for a page without scripts: intervals, stacked bars, curves, points, profile bars.

Every text is escaped here; colours are CSS classes of the page (`report.py`), so that charts follow light and dark.
A chart is drawn about 360 units wide, so that it is read at its own size on a phone; its `aria-label` says the numbers.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paretune.pareto.labels import place_labels

WIDTH = 360
_LEFT, _RIGHT = 84, 58
_ROW = 26


def escape(text: object) -> str:
    """Text for HTML content or a quoted attribute: never markup, no NUL."""
    return html.escape(str(text).replace("\x00", "\ufffd"), quote=True)


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash when it is undefined. Minus zero is zero."""
    if value is None:
        return "–"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")


def interval(estimate: Mapping[str, Any], digits: int = 3) -> str:
    """ "0.182 [0.160, 0.204]"."""
    if estimate["value"] is None or estimate["low"] is None:
        return number(estimate["value"], digits)
    low, high = number(estimate["low"], digits), number(estimate["high"], digits)
    return f"{number(estimate['value'], digits)} [{low}, {high}]"


@dataclass(frozen=True)
class Mark:
    """One row of an interval chart: a label, an estimate's JSON form, and the CSS class of its mark."""

    label: str
    estimate: Mapping[str, Any]
    kind: str = "plain"


def _svg(height: float, label: str, body: Sequence[str], width: float = WIDTH) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )


def _text(x: float, y: float, text: object, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers from low to high, about `wanted` of them."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step: float = min((factor * power for factor in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / rough)))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def interval_chart(marks: Sequence[Mark], title: str, *, zero: bool = False) -> str:
    """Dots with whiskers, one row each, on one axis; `zero` draws the line of no difference."""
    shown = [mark for mark in marks if mark.estimate["value"] is not None]
    if not shown:
        return '<p class="muted">Nothing to draw: no value is defined.</p>'
    ends = [
        end
        for mark in shown
        for end in (mark.estimate["value"], mark.estimate["low"], mark.estimate["high"])
        if end is not None
    ] + ([0.0] if zero else [])
    low, high = min(ends), max(ends)
    pad = (high - low) * 0.06 or max(abs(high) * 0.1, 0.05)
    low, high = float(low - pad), float(high + pad)

    def at(value: float) -> float:
        return _LEFT + (value - low) / (high - low) * (WIDTH - _LEFT - _RIGHT)

    bottom = _ROW * len(marks) + 8
    body = [
        _line(at(tick), 4, at(tick), bottom, "rule") + _text(at(tick), bottom + 14, f"{tick:g}", "tick", "middle")
        for tick in ticks(low, high)
    ]
    if zero:
        body.append(_line(at(0), 2, at(0), bottom, "zero"))
    for index, mark in enumerate(marks):
        y = 18 + _ROW * index
        body.append(_text(_LEFT - 8, y + 4, mark.label, "label", "end"))
        body.append(_text(WIDTH, y + 4, number(mark.estimate["value"]), "value", "end"))
        if mark.estimate["value"] is not None:
            if mark.estimate["low"] is not None:
                body.append(_line(at(mark.estimate["low"]), y, at(mark.estimate["high"]), y, f"whisker {mark.kind}"))
            body.append(f'<circle cx="{at(mark.estimate["value"]):.1f}" cy="{y}" r="4.5" class="dot {mark.kind}"/>')
    said = "; ".join(f"{mark.label} {interval(mark.estimate)}" for mark in marks)
    return _svg(bottom + 20, f"{title}: {said}", body)


def stacked_chart(rows: Sequence[tuple[str, Mapping[str, Any]]], title: str) -> str:
    """Shares of win, tie and loss as one bar a row."""
    body, said = [], []
    span = WIDTH - _LEFT
    for index, (label, shares) in enumerate(rows):
        y, x = 6 + _ROW * index, float(_LEFT)
        body.append(_text(_LEFT - 8, y + 14, label, "label", "end"))
        parts = [(key, shares[key]["value"]) for key in ("win", "tie", "loss")]
        if parts[0][1] is None:
            body.append(_text(_LEFT, y + 14, "–", "label"))
            continue
        for key, share in parts:
            width = span * share
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" class="{key}"/>')
            if share >= 0.09:
                body.append(_text(x + width / 2, y + 14, f"{100 * share:.0f}%", f"on-{key}", "middle"))
            x += width
        said.append(f"{label} " + ", ".join(f"{key} {100 * share:.0f}%" for key, share in parts))
    return _svg(_ROW * len(rows) + 8, f"{title}: {'; '.join(said)}", body)


def curve_chart(points: Sequence[Mapping[str, Any]], title: str) -> str:
    """Requested (across) against mean obtained (up) with whiskers; the dashed line is perfect obedience."""
    side, left, top, bottom = 200, 40, 10, 34
    width = left + side + 14

    def x(value: float) -> float:
        return left + value * side

    def y(value: float) -> float:
        return top + (1 - value) * side

    body = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        body.append(_line(x(tick), y(0), x(tick), y(1), "rule") + _line(x(0), y(tick), x(1), y(tick), "rule"))
        body.append(_text(x(tick), y(0) + 15, f"{tick:g}", "tick", "middle"))
        body.append(_text(left - 6, y(tick) + 4, f"{tick:g}", "tick", "end"))
    body.append(_line(x(0), y(0), x(1), y(1), "ideal"))
    shown = [point for point in points if point["obtained"]["value"] is not None]
    path = " ".join(f"{x(p['requested']):.1f},{y(p['obtained']['value']):.1f}" for p in shown)
    body.append(f'<polyline points="{path}" class="curve"/>')
    for point in shown:
        own = point["obtained"]
        if own["low"] is not None:
            body.append(
                _line(x(point["requested"]), y(own["low"]), x(point["requested"]), y(own["high"]), "whisker sensed")
            )
        body.append(f'<circle cx="{x(point["requested"]):.1f}" cy="{y(own["value"]):.1f}" r="4" class="dot sensed"/>')
    body.append(_text(left + side / 2, top + side + bottom - 2, "requested", "tick", "middle"))
    said = ", ".join(f"{p['requested']:g} gave {number(p['obtained']['value'], 2)}" for p in shown)
    return _svg(top + side + bottom + 4, f"{title}: requested {said}", body, width)


def scatter_chart(points: Sequence[Mapping[str, Any]], names: tuple[str, str], title: str) -> str:
    """Named points over two objectives; the front is filled, the rest hollow."""
    side_x, side_y, left, top, bottom = 270, 200, 44, 12, 40
    across, up = ([point["values"][name] for point in points] for name in names)
    (low_x, high_x), (low_y, high_y) = _padded(across), _padded(up)

    def x(value: float) -> float:
        return left + (value - low_x) / (high_x - low_x) * side_x

    def y(value: float) -> float:
        return top + (high_y - value) / (high_y - low_y) * side_y

    body = []
    places = [(x(one), y(two)) for one, two in zip(across, up, strict=True)]
    for tick in ticks(low_x, high_x):
        body.append(_line(x(tick), top, x(tick), top + side_y, "rule"))
        body.append(_text(x(tick), top + side_y + 14, f"{tick:g}", "tick", "middle"))
    for tick in ticks(low_y, high_y):
        body.append(_line(left, y(tick), left + side_x, y(tick), "rule"))
        body.append(_text(left - 6, y(tick) + 4, f"{tick:g}", "tick", "end"))
    for point, (px, py) in zip(points, places, strict=True):
        body.append(
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="5" class="dot {"sensed" if point["on_front"] else "hollow"}"/>'
        )
    widths = [7.0 * len(point["name"]) for point in points]  # of a 12-unit letter, about
    found = place_labels(places, widths, 14, (left, top, left + side_x + 20, top + side_y))
    for point, (px, py), (at_x, at_y), width in zip(points, places, found, widths, strict=True):
        if abs(at_y - py) > 1:
            body.append(_line(px, py, at_x if at_x > px else at_x + width, at_y, "leader"))
        body.append(_text(at_x, at_y + 4, point["name"], "label"))
    body.append(_text(left + side_x / 2, top + side_y + 32, f"{names[0]} →", "tick", "middle"))
    body.append(_text(left, top - 2, f"↑ {names[1]}", "tick"))
    said = "; ".join(
        f"{p['name']} {number(p['values'][names[0]])}, {number(p['values'][names[1]])}"
        f"{' (on the front)' if p['on_front'] else ''}"
        for p in points
    )
    return _svg(top + side_y + bottom, f"{title}, {names[0]} and {names[1]}: {said}", body, left + side_x + 20)


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = (high - low) * 0.15 or 0.05
    return low - pad, high + pad


def profile_bars(sensed: Mapping[str, float], target: Mapping[str, float]) -> str:
    """A sensed profile as bars, the target as a tick on each."""
    body, said = [], []
    start, span = 104, WIDTH - 104 - 44
    for index, (name, value) in enumerate(sensed.items()):
        y = 4 + 24 * index
        body.append(_text(96, y + 13, name if len(name) <= 15 else name[:14] + "…", "label", "end"))
        body.append(f'<rect x="{start}" y="{y + 3}" width="{span}" height="12" class="track" rx="2"/>')
        body.append(f'<rect x="{start}" y="{y + 3}" width="{span * value:.1f}" height="12" class="bar" rx="2"/>')
        if name in target:
            at = start + span * target[name]
            body.append(_line(at, y, at, y + 18, "target"))
        body.append(_text(WIDTH, y + 13, number(value, 2), "value", "end"))
        said.append(f"{name} {number(value, 2)}, target {number(target.get(name), 2)}")
    return _svg(24 * len(sensed) + 6, f"sensed profile: {'; '.join(said)}", body)
