"""The HTML pieces the report is built of: sections, tables, figures. Text is escaped by `charts.escape`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paretune.evaluation.charts import DASH, escape, interval, number

_TALL = 20
"""A table of more rows scrolls within its box, except on paper."""
_ROW = ' scope="row"'


@dataclass(frozen=True)
class Cell:
    """A table's cell: its text, the number it sorts by (by its text without one) and a CSS class."""

    text: str
    sort: float | None = None
    kind: str = ""


def estimated(estimate: Mapping[str, Any] | None, digits: int = 3, kind: str = "") -> Cell:
    """An estimate with its interval, as a cell; a dash where there is none."""
    return Cell(interval(estimate, digits), estimate["value"] if estimate else None, kind)


def numeric(value: float | None, digits: int = 3) -> Cell:
    """A plain number as a cell, whole ones with thin spaces between thousands; a dash for `None`."""
    if value is not None and digits == 0:
        return Cell(f"{value:,.0f}".replace(",", "\u202f"), float(value))
    return Cell(number(value, digits), value)


def table(header: Sequence[str], rows: Sequence[Sequence[object]], caption: str, *, kind: str = "") -> str:
    """A table of text cells (escaped here) that scrolls by itself on a narrow screen; the first cell heads its row.

    `kind` adds CSS classes; `sortable` lets the page's script put buttons into the header.
    """
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = []
    for first, *rest in rows:
        cells = "".join(_cell(cell, "td") for cell in rest)
        lines.append(f"<tr>{_cell(first, 'th', _ROW)}{cells}</tr>")
    classes = f' class="{kind}"' if kind else ""
    tall = " tall" if len(rows) > _TALL else ""
    return (
        f'<div class="scroll{tall}" tabindex="0" role="group" aria-label="{escape(caption)}"><table{classes}>'
        f"<caption><span>{escape(caption)}</span></caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(content: object, tag: str, more: str = "") -> str:
    cell = content if isinstance(content, Cell) else Cell(str(content))
    sort = f' data-sort="{float(cell.sort)!r}"' if cell.sort is not None else ""
    kind = f' class="{cell.kind}"' if cell.kind else ""
    return f"<{tag}{more}{kind}{sort}>{escape(cell.text)}</{tag}>"


def without_empty(header: Sequence[str], rows: Sequence[Sequence[object]]) -> tuple[list[str], list[list[object]]]:
    """Header and rows without the columns in which no row says anything."""
    kept = [
        column
        for column in range(len(header))
        if any(row[column].text if isinstance(row[column], Cell) else row[column] for row in map(_dashless, rows))
    ]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _dashless(row: Sequence[object]) -> list[Any]:
    return ["" if (cell.text if isinstance(cell, Cell) else cell) == DASH else cell for cell in row]


def reasons(estimates: Iterable[Mapping[str, Any] | None]) -> str:
    """Why some of these estimates are dashes, each reason once; nothing where all are defined."""
    whys = dict.fromkeys(each["why"] for each in estimates if each and each.get("why"))
    return "".join(paragraph(f"{DASH} : {why}.", "muted") for why in whys)


def section(title: str, *parts: str, lead: str = "", kind: str = "") -> str:
    """A section of ready HTML parts, after a lead in plain text."""
    said = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    classes = f' class="{kind}"' if kind else ""
    return f"<section{classes}><h3>{escape(title)}</h3>{said}{''.join(parts)}</section>"


def figure(chart: str, caption: str) -> str:
    """A chart with its caption in plain text."""
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def grid(figures: Sequence[str], kind: str = "") -> str:
    """Figures side by side where there is room."""
    return f'<div class="grid {kind}">{"".join(figures)}</div>'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def bullets(texts: Iterable[str], kind: str = "") -> str:
    """A list of plain texts; nothing for none."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


_LONG, _LINES = 400, 12
"""Text of more letters or lines than this may scroll within its box, which the keyboard must then reach."""


def said(text: str) -> str:
    """Text by a model or a user: its line breaks kept, its direction its own, never markup. Long text scrolls."""
    if len(text) > _LONG or text.count("\n") > _LINES:
        reached = 'tabindex="0" role="group" aria-label="long text"'
        return f'<div class="said long" dir="auto" {reached}>{escape(text)}</div>'
    return f'<div class="said" dir="auto">{escape(text)}</div>'


def percent(share: float | None) -> str:
    """A share as a whole percentage."""
    return DASH if share is None else f"{100 * share:.0f}%"
