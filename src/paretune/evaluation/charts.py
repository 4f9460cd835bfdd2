"""Small charts as inline SVG text, which need no script: intervals, stacked bars, curves, profile bars.

Every text is escaped here; colours are CSS classes of the page (`page/report.css`), so that charts follow light and
dark. A chart is drawn about 360 units wide, so that it is read at its own size on a phone; its `aria-label` says the
numbers. The front, which is interactive, is drawn in `page/front.py`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 360
DASH = "–"
_RIGHT = 58
_ROW = 26
_LETTER = 7.2
"""About how wide a letter of 12 units is."""


def escape(text: object) -> str:
    """Text for HTML content or a quoted attribute: never markup, no NUL."""
    return html.escape(str(text).replace("\x00", "\ufffd"), quote=True)


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash when it is undefined. Minus zero is zero."""
    if value is None:
        return DASH
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")


def interval(estimate: Mapping[str, Any] | None, digits: int = 3) -> str:
    """ "0.182 [0.160, 0.204]"; a dash where there is no estimate."""
    if estimate is None:
        return DASH
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


def svg(height: float, label: str, body: Sequence[str], width: float = WIDTH) -> str:
    """A whole chart of ready parts, read aloud as `label`."""
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )


def text(x: float, y: float, content: object, kind: str = "", anchor: str = "start") -> str:
    """Text at a point."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def ticks(low: float, high: float, wanted: int = 4) -> list[float]:
    """Round numbers from low to high, about `wanted` of them."""
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step: float = min((factor * power for factor in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / rough)))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def short(label: str, letters: int) -> str:
    """A label cut to so many letters."""
    return label if len(label) <= letters else label[: letters - 1] + "…"


def _margin(labels: Sequence[str]) -> float:
    """Room for labels on the left: as much as the longest wants, two fifths of the chart at most."""
    return min(max((len(label) for label in labels), default=0) * _LETTER + 14, WIDTH * 0.4)


def interval_chart(marks: Sequence[Mark], title: str, *, rule: float | None = None) -> str:
    """Dots with whiskers, one row each, on one axis; `rule` draws a line to compare with (0: no difference)."""
    shown = [mark for mark in marks if mark.estimate["value"] is not None]
    if not shown:
        return '<p class="muted">Nothing to draw: no value is defined.</p>'
    left = _margin([mark.label for mark in marks])
    ends = [
        end
        for mark in shown
        for end in (mark.estimate["value"], mark.estimate["low"], mark.estimate["high"])
        if end is not None
    ] + ([rule] if rule is not None else [])
    low, high = min(ends), max(ends)
    pad = (high - low) * 0.06 or max(abs(high) * 0.1, 0.05)
    low, high = float(low - pad), float(high + pad)

    def at(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - _RIGHT)

    bottom = _ROW * len(marks) + 8
    body = [
        line(at(tick), 4, at(tick), bottom, "rule") + text(at(tick), bottom + 14, f"{tick:g}", "tick", "middle")
        for tick in ticks(low, high)
    ]
    if rule is not None:
        body.append(line(at(rule), 2, at(rule), bottom, "zero"))
    for index, mark in enumerate(marks):
        y = 18 + _ROW * index
        body.append(text(left - 8, y + 4, short(mark.label, int((left - 8) / _LETTER)), "label", "end"))
        body.append(text(WIDTH, y + 4, number(mark.estimate["value"]), "value", "end"))
        if mark.estimate["value"] is not None:
            if mark.estimate["low"] is not None:
                body.append(line(at(mark.estimate["low"]), y, at(mark.estimate["high"]), y, f"whisker {mark.kind}"))
            body.append(f'<circle cx="{at(mark.estimate["value"]):.1f}" cy="{y}" r="4.5" class="dot {mark.kind}"/>')
    said = "; ".join(f"{mark.label} {interval(mark.estimate)}" for mark in marks)
    return svg(bottom + 20, f"{title}: {said}", body)


def stacked_chart(rows: Sequence[tuple[str, Mapping[str, Any]]], title: str) -> str:
    """Shares of win, tie and loss as one bar a row."""
    body, said = [], []
    left = _margin([label for label, _ in rows])
    span = WIDTH - left
    for index, (label, shares) in enumerate(rows):
        y, x = 6 + _ROW * index, left
        body.append(text(left - 8, y + 14, short(label, int((left - 8) / _LETTER)), "label", "end"))
        parts = [(key, shares[key]["value"]) for key in ("win", "tie", "loss")]
        if parts[0][1] is None:
            body.append(text(left, y + 14, DASH, "label"))
            continue
        for key, share in parts:
            width = span * share
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="20" class="{key}"/>')
            if share >= 0.09:
                body.append(text(x + width / 2, y + 14, f"{100 * share:.0f}%", f"on-{key}", "middle"))
            x += width
        said.append(f"{label} " + ", ".join(f"{key} {100 * share:.0f}%" for key, share in parts))
    return svg(_ROW * len(rows) + 8, f"{title}: {'; '.join(said)}", body)


def curve_chart(points: Sequence[Mapping[str, Any]], title: str, *, ideal: bool = True) -> str:
    """Requested (across) against mean obtained (up) with whiskers; the dashed line, if `ideal`, perfect obedience."""
    side, left, top, bottom = 200, 40, 10, 34
    width = left + side + 14

    def x(value: float) -> float:
        return left + value * side

    def y(value: float) -> float:
        return top + (1 - value) * side

    body = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        body.append(line(x(tick), y(0), x(tick), y(1), "rule") + line(x(0), y(tick), x(1), y(tick), "rule"))
        body.append(text(x(tick), y(0) + 15, f"{tick:g}", "tick", "middle"))
        body.append(text(left - 6, y(tick) + 4, f"{tick:g}", "tick", "end"))
    body += [line(x(0), y(0), x(1), y(1), "ideal")] if ideal else []
    shown = [point for point in points if point["obtained"]["value"] is not None]
    path = " ".join(f"{x(p['requested']):.1f},{y(p['obtained']['value']):.1f}" for p in shown)
    body.append(f'<polyline points="{path}" class="curve"/>')
    for point in shown:
        own = point["obtained"]
        if own["low"] is not None:
            body.append(
                line(x(point["requested"]), y(own["low"]), x(point["requested"]), y(own["high"]), "whisker sensed")
            )
        body.append(f'<circle cx="{x(point["requested"]):.1f}" cy="{y(own["value"]):.1f}" r="4" class="dot sensed"/>')
    body.append(text(left + side / 2, top + side + bottom - 2, "requested", "tick", "middle"))
    said = ", ".join(f"{p['requested']:g} gave {number(p['obtained']['value'], 2)}" for p in shown)
    return svg(top + side + bottom + 4, f"{title}: requested {said}", body, width)


def profile_bars(
    values: Mapping[str, float],
    target: Mapping[str, float],
    intervals: Mapping[str, Sequence[float]] | None = None,
    title: str = "sensed profile",
    width: float = WIDTH,
) -> str:
    """A profile as bars, the ends of its intervals as whiskers, and the target as a tick on each.

    `width` is the drawing's own, less than usual where it stands in a narrow box, so that its text stays readable.
    """
    body, said = [], []
    start = min(_margin(list(values)), 0.32 * width)
    span = width - start - 44
    for index, (name, value) in enumerate(values.items()):
        y = 4 + 24 * index
        body.append(text(start - 8, y + 13, short(name, int((start - 8) / _LETTER)), "label", "end"))
        body.append(f'<rect x="{start:.1f}" y="{y + 3}" width="{span:.1f}" height="12" class="track" rx="2"/>')
        body.append(
            f'<rect x="{start:.1f}" y="{y + 3}" width="{span * _within(value):.1f}" height="12" class="bar" rx="2"/>'
        )
        ends = (intervals or {}).get(name)
        if ends:
            low, high = (start + span * _within(end) for end in ends)
            body.append(line(low, y + 9, high, y + 9, "reach"))
            body += [line(end, y + 5, end, y + 13, "reach") for end in (low, high)]
        if target.get(name) is not None:
            at = start + span * _within(target[name])
            body.append(line(at, y, at, y + 18, "target"))
        body.append(text(width, y + 13, number(value, 2), "value", "end"))
        between = f" (between {number(ends[0], 2)} and {number(ends[1], 2)})" if ends else ""
        said.append(f"{name} {number(value, 2)}{between}, target {number(target.get(name), 2)}")
    return svg(24 * len(values) + 6, f"{title}: {'; '.join(said)}", body, width)


def _within(value: float) -> float:
    return min(1.0, max(0.0, value))
