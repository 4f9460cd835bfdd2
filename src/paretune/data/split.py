"""Split rows into training, validation and test so that no prompt stands in two parts."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from paretune.data.rows import Messages, Row, prompt_key
from paretune.errors import InputError


@dataclass(frozen=True)
class Split:
    """Three disjoint parts, each in the order of the input."""

    train: list[Row]
    validation: list[Row]
    test: list[Row]


def normalised_key(prompt: Messages) -> str:
    """A key that prompts share when they differ only in case, spacing or Unicode form."""
    return prompt_key(
        [
            {**message, "content": " ".join(unicodedata.normalize("NFKC", message["content"]).casefold().split())}
            for message in prompt
        ]
    )


def split_rows(rows: Sequence[Row], *, seed: int = 0, validation: float = 0.1, test: float = 0.1) -> Split:
    """Split by prompt: the part is drawn from a hash of seed and normalised prompt alone.

    So the split is the same whatever the order of rows, and adding rows moves none of the old ones; the parts' sizes
    meet `validation` and `test` on average. Only if a wanted part comes out empty (few prompts) is the nearest prompt
    moved into it.

    Raises:
        InputError: fractions that are negative or leave nothing for training, or too few distinct prompts.
    """
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise InputError(
            f"validation and test are shares in [0, 1) that leave something for training, found {validation} and {test}"
        )
    draws = {key: _draw(key, seed) for key in {normalised_key(row.prompt) for row in rows}}
    parts = _assign(draws, validation, test)
    wanted = 1 + (validation > 0) + (test > 0)
    if len(set(parts.values())) < wanted:
        raise InputError(f"{len(draws)} distinct prompts are too few to split into {wanted} parts")
    chosen: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for row in rows:
        chosen[parts[normalised_key(row.prompt)]].append(row)
    return Split(**chosen)


def _draw(key: str, seed: int) -> float:
    """A number in [0, 1) that depends on the key and the seed alone."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{key}".encode()).digest()[:7]) / 2**56


def _assign(draws: dict[str, float], validation: float, test: float) -> dict[str, str]:
    """[0, test) is test, [test, test + validation) validation, the rest training; then no wanted part is left empty."""
    bounds = {"test": (0.0, test), "validation": (test, test + validation), "train": (test + validation, 1.0)}
    parts = {key: next(name for name, (_, end) in bounds.items() if draw < end) for key, draw in draws.items()}
    for name, (start, end) in bounds.items():
        if end <= start or name in parts.values():
            continue
        counts = {part: list(parts.values()).count(part) for part in bounds}
        spare = [key for key, part in parts.items() if counts[part] > 1]
        if spare:
            middle = (start + end) / 2
            parts[min(spare, key=lambda key: (abs(draws[key] - middle), key))] = name
    return parts
