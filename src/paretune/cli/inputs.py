"""What verbs are given, checked and read into what the functions take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretune.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from paretune.data.rows import Row
    from paretune.profile import Profile


def read_prompts(prompt: str | None, prompts: Path | None) -> list[Row]:
    """The prompts as rows, from the one of the two options that is given."""
    from paretune.data import read_rows
    from paretune.data.prompts import as_chat
    from paretune.data.rows import Row

    if (prompt is None) == (prompts is None):
        raise InputError("give either --prompt TEXT or --prompts FILE")
    if prompts is not None:
        return read_rows(prompts)
    assert prompt is not None
    return [Row(prompt=as_chat(prompt, "--prompt"), id="row-1")]


def check_target_file(path: Path | None, *, overwrite: bool) -> None:
    """Refuse an output file that exists, before any work is done."""
    from paretune.files import check_parent

    if path is not None:
        check_parent(path)
    if path is not None and path.exists() and not overwrite:
        raise InputError("exists already; pass --overwrite to replace it", file=path)


def read_condition(text: str, names: Sequence[str], count: int) -> str | Profile | list[Profile | None]:
    """One of the named conditions, or a file: JSON holds one profile for all, JSON Lines one a prompt (or null)."""
    from paretune.files import read_json
    from paretune.policy import CONDITIONS

    if text in CONDITIONS:
        return text
    path = Path(text)
    if not path.is_file():
        raise InputError(f"unknown condition '{text}', and no such file.{did_you_mean(text, CONDITIONS)}")
    if path.suffix != ".jsonl":
        return _profile(read_json(path), names, path, None)
    profiles = list(_lines(path, names))
    if len(profiles) != count:
        raise InputError(f"holds {len(profiles)} profiles for {count} prompts; one a prompt is needed", file=path)
    return profiles


def _lines(path: Path, names: Sequence[str]) -> Iterator[Profile | None]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise InputError(f"is not JSON: {error}", file=path, line=number) from None
            yield None if value is None else _profile(value, names, path, number)


def _profile(value: Any, names: Sequence[str], path: Path, line: int | None) -> Profile:
    from paretune.profile import check_profile

    try:
        return check_profile(value, names, partial=True)
    except InputError as error:
        raise InputError(error.message, file=path, line=line) from None


def read_reference(text: str | None) -> dict[str, float] | list[float] | None:
    """`a=0,b=1` by name, or `0,1` in the order of the columns."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    try:
        if "=" not in text:
            return [float(part) for part in parts]
        pairs = [part.rsplit("=", 1) for part in parts]
        named = {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise InputError(f"a reference is written a=0,b=1 or 0,1, found '{text}'") from None
    if len(named) < len(pairs):
        raise InputError(f"the reference names a column twice: '{text}'")
    return named
