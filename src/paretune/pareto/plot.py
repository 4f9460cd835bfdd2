"""Points and their front as a PNG, drawn by matplotlib's Agg canvas (no display, no global state).

Up to four objectives: one panel for each pair. More: parallel coordinates. One: a strip.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from paretune.files import atomic_file
from paretune.pareto.front import Floats, as_points, non_dominated
from paretune.pareto.labels import place_labels

_FRONT, _OTHER = "#0b6e99", "#9aa5ad"
_PAIRS_UP_TO = 4
_LABELS_UP_TO = 60


def plot_points(
    points: ArrayLike,
    path: Path | str,
    *,
    names: Sequence[str],
    maximise: Sequence[bool] | None = None,
    mask: Sequence[bool] | None = None,
    labels: Sequence[str] | None = None,
    title: str = "",
) -> None:
    """Draw points [n, m] to `path`: the front (`mask`, found when not given) stands out and carries `labels`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    values = as_points(points)
    up = list(maximise) if maximise is not None else [True] * len(names)
    kept = np.asarray(mask if mask is not None else non_dominated(values, up), dtype=bool)
    texts = list(labels) if labels is not None else [""] * len(values)
    axis_names = [
        f"{_plain(name)} ({'more' if flag else 'less'} is better)" for name, flag in zip(names, up, strict=True)
    ]
    pairs = list(combinations(range(len(names)), 2)) if 2 <= len(names) <= _PAIRS_UP_TO else []
    columns = min(3, max(1, len(pairs)))
    lines = max(1, -(-len(pairs) // columns))
    figure = Figure(figsize=(max(5.5, 4.6 * columns), 4.2 * lines), layout="constrained")
    FigureCanvasAgg(figure)
    for place, pair in enumerate(pairs, start=1):
        _draw_pair(figure.add_subplot(lines, columns, place), values, kept, pair, axis_names, texts, up)
    if not pairs:
        _draw_all(figure.add_subplot(), values, kept, axis_names)
    if title:
        figure.suptitle(_plain(title))
    _save(figure, path)


def plot_message(message: str, path: Path | str) -> None:
    """A PNG that says why there is nothing to draw."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 2.5))
    figure.text(0.5, 0.5, _plain(message), ha="center", va="center", wrap=True)
    _save(figure, path)


def _plain(text: str) -> str:
    """Text that matplotlib does not read as mathematics, cut to a readable length."""
    text = " ".join(text.split()).replace("$", r"\$")
    return text if len(text) <= 60 else text[:59] + "…"


def _save(figure: Any, path: Path | str) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    with atomic_file(path) as file:
        file.write(buffer.getvalue())


def _draw_pair(
    axes: Any,
    values: Floats,
    kept: Any,
    pair: tuple[int, int],
    names: Sequence[str],
    labels: Sequence[str],
    up: Sequence[bool],
) -> None:
    x, y = pair
    axes.scatter(values[~kept, x], values[~kept, y], color=_OTHER, s=26, label="dominated")
    axes.scatter(values[kept, x], values[kept, y], color=_FRONT, s=38, label="on the front")
    if len(names) == 2:
        order = np.argsort(values[kept, x])
        # the edge of what the front dominates
        step = "pre" if up[x] else "post"
        axes.step(values[kept, x][order], values[kept, y][order], where=step, color=_FRONT, alpha=0.4)
    axes.set_xlabel(names[x])
    axes.set_ylabel(names[y])
    axes.grid(alpha=0.25)
    axes.margins(0.12)
    _draw_labels(axes, values[:, [x, y]], labels)


def _draw_labels(axes: Any, points: Floats, labels: Sequence[str]) -> None:
    """The points' names, apart from each other; in points (1/72 inch), at 8 of which a letter is about 4.6 wide."""
    texts = [_plain(text) for text in labels]
    if not any(texts) or len(texts) > _LABELS_UP_TO:
        return
    figure = axes.figure
    figure.draw_without_rendering()  # settles the layout, so that data and places on the paper agree
    scale = 72 / figure.dpi
    places = [(float(px), float(py)) for px, py in axes.transData.transform(points) * scale]
    box = axes.get_window_extent()
    bounds = (float(box.x0) * scale, float(box.y0) * scale, float(box.x1) * scale, float(box.y1) * scale)
    found = place_labels(places, [4.6 * len(text) for text in texts], 10.0, bounds)
    for text, (px, py), (at_x, at_y), point in zip(texts, places, found, points, strict=True):
        away = {"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.5} if text and abs(at_y - py) > 1 else None
        axes.annotate(
            text,
            point,
            xytext=(at_x - px, at_y - py),
            textcoords="offset points",
            fontsize=8,
            va="center_baseline",
            arrowprops=away,
        )


def _draw_all(axes: Any, values: Floats, kept: Any, names: Sequence[str]) -> None:
    """Parallel coordinates, each column scaled to its own range (a strip when there is one)."""
    spread = np.ptp(values, axis=0)
    scaled = (values - values.min(axis=0)) / np.where(spread > 0, spread, 1.0)
    ticks = range(len(names))
    for point, front in sorted(zip(scaled, kept, strict=True), key=lambda item: bool(item[1])):
        axes.plot(ticks, point, marker="o", color=_FRONT if front else _OTHER, alpha=0.9 if front else 0.5)
    axes.set_xticks(list(ticks), names, rotation=20, ha="right", fontsize=8)
    axes.set_ylabel("from the lowest to the highest value")
    axes.grid(alpha=0.25)
