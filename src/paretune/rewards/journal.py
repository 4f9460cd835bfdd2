"""What a scoring has done so far, kept beside its output so that a killed run goes on where it stopped.

    .NAME.scoring/
      header.json              format version, digest of the rows, chunk size
      OBJECTIVE-KEY/12.json    scores, details and counts of chunk 12, with a digest of its own
      finished.json            which file the finished output is, written before it is moved to its place
      lock                     held while a scoring runs

KEY is a hash of the objective's spec and of what its scores depend on (`RewardKind.fingerprint`): a reward that changed
has another folder and is measured anew, the others are not. A chunk is renamed into place but not flushed to the disk:
that holds against a killed process, and after a power failure its digest tells a broken one, which is measured again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.files import check_parent, dump_line, installed_version, locked, move_file, read_json, write_json
from paretune.profile import Objective
from paretune.rewards.measure import Measured
from paretune.rewards.spec import kind_of, spec_of

FORMAT = 1


def objective_key(objective: Objective) -> str:
    """A hash of an objective's spec, of what its reward reads besides the rows, and of this version of paretune."""
    kind, rest = kind_of(objective)
    return _digest([installed_version("paretune"), spec_of(objective), kind.fingerprint(rest)])[:16]


def _digest(value: Any) -> str:
    return hashlib.sha256(dump_line(value).encode("utf-8")).hexdigest()


class Journal:
    """The journal of the scoring into `out`. `chunk_size` is the size of its chunks, in completions."""

    def __init__(self, out: Path, objectives: Sequence[Objective], chunk_size: int) -> None:
        self.out = check_parent(out)
        self._ending = "".join(out.suffixes[-2:]) if out.suffix.lower() == ".gz" else out.suffix
        self.folder = self.out.with_name(f".{self.out.name}.scoring")
        self.chunk_size = chunk_size
        self._removed = False
        self._places = {item.name: self.folder / f"{item.name}-{objective_key(item)}" for item in objectives}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other scorings into the same file out; a block that ends without a chunk kept leaves no folder."""
        shutil.rmtree(self._done, ignore_errors=True)
        try:
            with locked(self.folder / "lock", f"scoring into {self.out.name}"):
                try:
                    yield
                finally:
                    if not self._removed and not self.anything():  # removed: the folder may be another's by now
                        self._clear()
        finally:
            with suppress(OSError):  # not empty, or gone
                self.folder.rmdir()

    def anything(self) -> bool:
        """Whether a chunk is kept, of whatever objective."""
        return any(self.folder.glob("*/*.json"))

    def count(self, name: str) -> int:
        """How many chunks of an objective are kept."""
        return sum(1 for _ in self._places[name].glob("*.json"))

    def wrote(self, path: Path) -> bool:
        """Whether `path` is the output of this very scoring, which was killed before it could tidy up."""
        try:
            return bool(read_json(self.folder / "finished.json") == _identity(path))
        except (InputError, OSError):
            return False

    def begin(self, rows: Path | str, digest: str, *, discard: bool) -> None:
        """Start on rows of this digest, or go on. Another scoring that is there is an `InputError`, or discarded."""
        header = self.folder / "header.json"
        if header.exists():
            before = _header(header)
            if before is not None and (before["rows"] == digest or self.wrote(Path(rows))):
                self.chunk_size = int(before["chunk_size"])
                return
            if not discard:
                raise InputError(
                    "holds an unfinished scoring of other rows (the input has changed, or another one went to the "
                    "same output); pass --overwrite to discard it, or choose another output",
                    file=self.folder,
                )
            self._clear()
        write_json(header, {"format": FORMAT, "rows": digest, "chunk_size": self.chunk_size})

    def _clear(self) -> None:
        for item in self.folder.iterdir() if self.folder.is_dir() else ():
            if item.is_dir():
                shutil.rmtree(item)
            elif item.name != "lock":
                item.unlink()

    def read(self, name: str, number: int, key: str, count: int) -> Measured | None:
        """What was kept of a chunk (`key` and `count` say which completions it holds), None if nothing sound was."""
        try:
            data = json.loads(self._path(name, number).read_text(encoding="utf-8"))
            kept = data["chunk"]
            if data["digest"] != _digest(kept) or kept["key"] != key or len(kept["scores"]) != count:
                return None
            return Measured(kept["scores"], kept["details"], kept["counts"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, name: str, number: int, key: str, found: Measured) -> None:
        """Keep what an objective's reward said of a chunk."""
        kept = {"key": key, "scores": found.scores, "details": found.details, "counts": found.counts}
        try:
            text = dump_line({"digest": _digest(kept), "chunk": kept}).encode("utf-8")
        except (TypeError, ValueError) as error:  # not JSON, NaN, half a character
            raise InputError(f"objective '{name}': its reward's details or counts are no JSON ({error})") from None
        path = self._path(name, number)
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(".part")
        try:
            part.write_bytes(text)
            os.replace(part, path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def _path(self, name: str, number: int) -> Path:
        return self._places[name] / f"{number}.json"

    @property
    def finished(self) -> Path:
        """Where the output is written before it is moved into its place; the same ending, so the same kind of file."""
        return self.folder / f"output{self._ending}"

    def publish(self) -> None:
        """Move the finished output into its place."""
        write_json(self.folder / "finished.json", _identity(self.finished))
        move_file(self.finished, self.out)

    def remove(self) -> None:
        """The work is done. Renamed first: a half-removed journal is never taken for one."""
        os.replace(self.folder, self._done)
        self._removed = True
        shutil.rmtree(self._done, ignore_errors=True)

    @property
    def _done(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.done")


def _identity(path: Path) -> list[int]:
    """What stays of a file when it is renamed, and of no copy of it."""
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns]


def _header(path: Path) -> dict[str, Any] | None:
    """The header, or None for a broken one or one of another version."""
    try:
        data = read_json(path)
    except InputError:
        return None
    sound = isinstance(data, dict) and data.get("format") == FORMAT and isinstance(data.get("rows"), str)
    return data if sound and isinstance(data.get("chunk_size"), int) else None
