"""The HTML pieces the report is built of: sections, tables, figures. Text is escaped by `charts.escape`."""

from __future__ import annotations

from collections.abc import Sequence

from paretune.evaluation.charts import escape


def table(header: Sequence[str], rows: Sequence[Sequence[object]], caption: str) -> str:
    """A table of text cells (escaped here) that scrolls by itself on a narrow screen; the first cell heads its row."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def section(title: str, *parts: str, lead: str = "") -> str:
    """A section of ready HTML parts, after a lead in plain text."""
    said = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f"<section><h3>{escape(title)}</h3>{said}{''.join(parts)}</section>"


def figure(chart: str, caption: str) -> str:
    """A chart with its caption in plain text."""
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def grid(figures: Sequence[str], kind: str = "") -> str:
    """Figures side by side where there is room."""
    return f'<div class="grid {kind}">{"".join(figures)}</div>'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def percent(share: float | None) -> str:
    """A share as a whole percentage."""
    return "–" if share is None else f"{100 * share:.0f}%"
