"""Split rows into training, validation and test so that no prompt, nor nearly the same one, stands in two parts."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from paretune.data.rows import Messages, Row, prompt_key
from paretune.errors import InputError


@dataclass(frozen=True)
class Split:
    """Three disjoint parts, each in the order of the input.

    `joined`: how many distinct prompts follow a near-duplicate instead of a draw of their own.
    """

    train: list[Row]
    validation: list[Row]
    test: list[Row]
    joined: int = 0


def normalised_key(prompt: Messages) -> str:
    """A key that prompts share when they differ only in case, spacing or Unicode form."""
    return prompt_key([{**message, "content": normalised_text(message["content"])} for message in prompt])


def normalised_text(text: str) -> str:
    """A text without what case, spacing and Unicode form make of it."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


NEAR = 0.8
"""Prompts whose shingles overlap by this much (Jaccard index, `paretune.data.near`) stay together."""


def split_rows(
    rows: Sequence[Row], *, seed: int = 0, validation: float = 0.1, test: float = 0.1, near_duplicates: float = NEAR
) -> Split:
    """Split by prompt: the part is drawn from a hash of seed and normalised prompt alone.

    So the split is the same whatever the order of rows, and the parts' sizes meet `validation` and `test` on average.
    Near-duplicate prompts (a Jaccard index of at least `near_duplicates`, or connected by a chain of such pairs) fall
    into one part, that of the smallest key among them; 0 keeps only equal prompts together. Adding rows moves none of
    the old ones, unless a new prompt nearly repeats them. Only if a wanted part comes out empty (few prompts) is the
    nearest prompt moved into it, with its near-duplicates.

    Raises:
        InputError: fractions that are negative or leave nothing for training, `near_duplicates` outside [0, 1], or too
            few distinct prompts.
    """
    if not (0 <= validation < 1 and 0 <= test < 1 and validation + test < 1):
        raise InputError(
            f"validation and test are shares in [0, 1) that leave something for training, found {validation} and {test}"
        )
    if not 0 <= near_duplicates <= 1:
        raise InputError(f"near_duplicates must lie in [0, 1], found {near_duplicates}")
    keys = [normalised_key(row.prompt) for row in rows]
    first = _representatives(rows, keys, near_duplicates) if near_duplicates else {key: key for key in keys}
    draws = {key: _draw(key, seed) for key in first.values()}
    parts = _assign(draws, validation, test)
    wanted = 1 + (validation > 0) + (test > 0)
    if len(set(parts.values())) < wanted:
        alike = f" (of {len(first)}, the others nearly repeat them)" if len(draws) < len(first) else ""
        raise InputError(f"{len(draws)} distinct prompts{alike} are too few to split into {wanted} parts")
    chosen: dict[str, list[Row]] = {"train": [], "validation": [], "test": []}
    for key, row in zip(keys, rows, strict=True):
        chosen[parts[first[key]]].append(row)
    return Split(**chosen, joined=len(first) - len(draws))


def _representatives(rows: Sequence[Row], keys: Sequence[str], threshold: float) -> dict[str, str]:
    """Each key's group: the smallest key among its near-duplicates, itself where it has none."""
    from paretune.data.near import near_duplicates, prompt_text

    prompts = {key: row.prompt for key, row in zip(keys, rows, strict=True)}
    distinct = list(prompts)
    first = {key: key for key in distinct}
    for group in near_duplicates([prompt_text(prompts[key]) for key in distinct], threshold):
        smallest = min(distinct[at] for at in group)
        first |= {distinct[at]: smallest for at in group}
    return first


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
