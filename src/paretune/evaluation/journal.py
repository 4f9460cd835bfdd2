"""What the policies of a run have answered so far, kept beside its output so that a killed run goes on from there.

    .NAME.answers        JSON Lines: a header of what answers depend on, then every finished call of a policy's answers

A call is known by a hash of all that was asked in it (whom, the prompts, condition, pins, weights), so the same command
takes it up, and so does one that differs in what follows the answers (a judge, a reference point, more resamples) or
asks for more. A run of other policies, other rows, another limit or seed, or other versions never mixes with it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from paretune.data import Row
from paretune.errors import InputError
from paretune.files import file_digest

FORMAT = 1
_WORDS = {
    "policies": "of other policies, or of what these were before",
    "rows": "on other rows",
    "max_new_tokens": "with another limit of new tokens",
    "seed": "with another seed",
    "versions": "by other versions of the software",
}
_CARD = "README.md"
"""Of a policy folder the file that an evaluation writes into, and that no answer depends on."""


def header(
    folders: Mapping[str, Path],
    rows: Sequence[Row],
    *,
    max_new_tokens: int | None,
    seed: int,
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """What answers depend on besides what is asked: the policies' files by name, the rows, limit, seed, versions."""
    return {
        "format": FORMAT,
        "policies": {name: _folder_digest(folder) for name, folder in folders.items()},
        "rows": _digest([[row.id, row.to_dict()] for row in rows]),
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "versions": dict(versions),
    }


def _folder_digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != _CARD)
    return _digest([[str(path.relative_to(folder)), file_digest(path)] for path in files])


def _digest(value: Any) -> str:
    # ASCII: half a character of a model's answer has no UTF-8
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode("ascii")).hexdigest()


class Journal:
    """The finished calls of the evaluation into `out`; made with the first of them, removed when all is written.

    Raises `InputError` where one lies there that was begun otherwise, unless `discard`.
    """

    def __init__(self, out: Path, begun: Mapping[str, Any], *, discard: bool) -> None:
        self.path = out.with_name(f".{out.name}.answers")
        self._begun = dict(begun)
        self._calls: dict[str, dict[str, Any]] = {}
        self._taken: dict[str, int] = {}
        self._kept: set[str] = set()
        self._whole = 0  # bytes of the file that are sound
        self._file: Any = None
        self._load(discard)

    def _load(self, discard: bool) -> None:
        """Read what is there up to the first broken line: nothing after it was finished."""
        if not self.path.exists():
            return
        try:
            first, *lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=self.path) from error
        before = _parsed(first)
        if not before or not lines:
            return  # killed before its first line was whole
        differing = [key for key in self._begun if before.get(key) != self._begun[key]]
        if differing and discard:
            return
        if differing:
            said = " and ".join(_WORDS.get(key, "in another form") for key in differing)
            raise InputError(
                f"holds the answers of an unfinished evaluation {said}; go on with that one, pass --overwrite to "
                "discard it, or choose another output",
                file=self.path,
            )
        self._whole = len(first) + 1
        for line in lines[:-1]:
            record = _parsed(line)
            if not _sound(record):
                break
            self._calls[record["call"]] = record
            self._whole += len(line) + 1

    @property
    def taken(self) -> int:
        """How many answers this run took from those of an earlier one."""
        return sum(self._taken.values())

    def find(self, asked: Any) -> tuple[list[Any], float] | None:
        """The answers (`paretune.policy.Generation`) to a call and the seconds they took; None if it was not made."""
        from paretune.policy import Generation

        call = _digest(asked)
        found = self._calls.get(call)
        names = {each.name for each in fields(Generation)}
        if found is None or any(set(each) != names for each in found["answers"]):
            return None
        answers = []
        for each in found["answers"]:
            ends = each["interval"]
            interval = {name: (low, high) for name, (low, high) in ends.items()} if ends is not None else None
            answers.append(Generation(**{**each, "interval": interval}))
        self._taken[call] = len(answers)
        return answers, found["seconds"]

    def keep(self, asked: Any, answers: Sequence[Any], seconds: float) -> None:
        """Add a finished call, unless this run has added it already; on disk when this returns."""
        call = _digest(asked)
        if call in self._kept:
            return
        record = {"call": call, "seconds": seconds, "answers": [asdict(each) for each in answers]}
        try:
            if self._file is None:
                self._open()
            self._file.write(_line(record))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._kept.add(call)
        except OSError as error:
            raise InputError(
                f"cannot be written: {error.strerror or error}; what was answered before is kept", file=self.path
            ) from error

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("r+b" if self._whole else "wb")
        self._file.truncate(self._whole)
        self._file.seek(self._whole)
        if not self._whole:
            self._file.write(_line(self._begun))

    def close(self) -> None:
        """Close the file; it stays for the next run."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """The output is written: the journal has done its work."""
        self.close()
        self.path.unlink(missing_ok=True)


def _line(record: Any) -> bytes:
    return (json.dumps(record, allow_nan=False) + "\n").encode("ascii")


def _parsed(line: bytes) -> dict[str, Any]:
    """The JSON object of a line; {} for anything else."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _sound(record: Mapping[str, Any]) -> bool:
    """Whether a line holds a call as `keep` writes it."""
    return isinstance(record.get("call"), str) and isinstance(record.get("answers"), list) and "seconds" in record
