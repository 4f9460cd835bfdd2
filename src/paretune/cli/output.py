"""What verbs print: results on stdout (for people, or one JSON object), errors on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any
from unicodedata import category

import typer


def complain(message: str, word: str = "error: ") -> None:
    """One message on stderr."""
    typer.echo(word + printable(message), err=True)


def say(text: str = "") -> None:
    """A line for people on stdout."""
    typer.echo(printable(text))


def printable(text: str) -> str:
    """Text without control characters, by which a model's answer could steer a terminal."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if category(char) in ("Cc", "Cs") and char not in "\n\t" else char for char in text
    )


def emit(result: Any, as_json: bool, show: Callable[[], None]) -> None:
    """Print a verb's result: one JSON object when asked for, else what `show` prints."""
    if not as_json:
        show()
        return
    sys.stdout.write(json.dumps(plain(result), ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def plain(value: Any) -> Any:
    """A result in JSON's own types: dataclasses as objects, paths as text, tuples as lists."""
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def table(rows: Iterable[Sequence[object]], *, header: Sequence[str] = ()) -> list[str]:
    """Rows as lines of aligned columns; numbers stand to the right, floats with about three digits."""
    body = [[_cell(value) for value in row] for row in rows]
    lines = [(list(header), [False] * len(header))] if header else []
    cells = [[text for text, _ in row] for row in body]
    widths = [max(len(row[at]) for row in [*cells, *([list(header)] if header else [])]) for at in _columns(cells)]
    lines += [([text for text, _ in row], [number for _, number in row]) for row in body]
    numeric = [all(row[at][1] for row in body) for at in range(len(widths))]
    out = []
    for texts, _ in lines:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(texts, widths, numeric, strict=True)
        ]
        out.append("  ".join(padded).rstrip())
    return out


def _columns(cells: Sequence[Sequence[str]]) -> range:
    return range(len(cells[0])) if cells else range(0)


def _cell(value: object) -> tuple[str, bool]:
    if value is None:
        return "-", True
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value), False
    if isinstance(value, int):
        return f"{value:,}", True
    size = abs(value)
    if size >= 1000:
        return (f"{value:,.0f}" if size < 1e12 else f"{value:.3e}"), True
    return (f"{value:.3f}" if size >= 0.001 or not size else f"{value:.1e}"), True


def profile_bars(
    profile: Mapping[str, float],
    pins: Mapping[str, float] | None = None,
    width: int = 24,
    interval: Mapping[str, tuple[float, float]] | None = None,
) -> list[str]:
    """A profile as one bar a line, pinned values marked, the others with their interval where there is one."""
    longest = max((len(name) for name in profile), default=0)
    lines = []
    for name, value in profile.items():
        full = round(value * width)
        mark = ""
        if pins and name in pins:
            mark = "  pinned"
        elif interval is not None:
            mark = " [{:.2f}, {:.2f}]".format(*interval[name])
        lines.append(f"{name:<{longest}}  {'█' * full}{'░' * (width - full)}  {value:.2f}{mark}")
    return lines
