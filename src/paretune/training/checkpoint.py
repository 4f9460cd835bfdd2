"""Checkpoints of a training, kept beside its output so that a killed run goes on where it stopped.

    .NAME.checkpoints/
      training.json            format version, and what is trained: a checkpoint is of use to this very training alone
      step-000050/             one checkpoint, whole or not there
        state.safetensors      adapter, head, optimizer, random state, and what the learner keeps
        state.json             step, of how many, tokens, seconds
        journal.jsonl          the records of train.jsonl so far
        manifest.json          size and SHA-256 of each of these, written last
      tracking.json          under which name trackers know the run, where it is reported to any
      part-NAME/step-000050/   where a method trains several adapters in turn, each has a folder of its own

A checkpoint is flushed to the disk and renamed into place. The manifest tells a broken one (a power failure, a copy
that stopped half-way), which is skipped, with words, for the one before it. Nothing is pickled.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from paretune.errors import InputError
from paretune.files import atomic_folder, dump_line, file_digest, read_described, read_json, write_json
from paretune.policy.backbone import reason
from paretune.policy.folder import disk_errors
from paretune.training.provenance import check_same

FORMAT = 1
HEADER, MANIFEST, TENSORS, NUMBERS, RECORDS = (
    "training.json",
    "manifest.json",
    "state.safetensors",
    "state.json",
    "journal.jsonl",
)


@dataclass
class State:
    """A training after a whole step: all that the steps after it depend on.

    `seconds` and `tokens` count from the very start, whatever process they were spent in. `steps` is how many there
    will be (0: it was not written down).
    """

    step: int
    tensors: dict[str, Tensor]
    tokens: int = 0
    seconds: float = 0.0
    records: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0


class Checkpoints:
    """The checkpoints of one training, or of one part of it."""

    def __init__(
        self,
        out: Path,
        identity: Mapping[str, Any],
        *,
        every: int = 50,
        keep: int = 1,
        restart: bool = False,
        force: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> None:
        """Those of the training into `out`: none yet, or those that an earlier run left. One process at a time.

        `every` steps one is due (0: at the end of every epoch), `keep` are kept. `note` is told in words what a person
        should know on the way. Raises `InputError` where what lies there is of another training; `restart` discards it,
        and `force` goes on where it is only other code that wrote it.
        """
        self.root = self.folder = out.with_name(f".{out.name}.checkpoints")
        self.identity, self.every, self.keep = identity, every, keep
        self.note: Callable[[str], None] = note or (lambda text: None)
        if restart:
            self.discard()
        elif self.root.exists():
            self._check(force)

    def _check(self, force: bool) -> None:
        for half in self.root.glob("**/.*.part"):  # what a killed run was writing
            shutil.rmtree(half, ignore_errors=True)
        if not any(self._all()):
            self.discard()
            return
        try:
            before = read_described(self.root / HEADER, FORMAT)
        except InputError as error:
            raise InputError(f"{error.message}; pass --restart to discard these checkpoints", file=error.file) from None
        if not check_same(
            before, self.identity, place=self.root, what="an unfinished training", force=force, note=self.note
        ):
            self._describe()  # what follows is made by the present code

    def _describe(self) -> None:
        write_json(self.root / HEADER, {"format": FORMAT, **self.identity})

    def part(self, name: str) -> Checkpoints:
        """The checkpoints of one of several trainings that follow each other; an empty name is the whole."""
        if not name:
            return self
        one = object.__new__(Checkpoints)
        one.__dict__.update(self.__dict__)
        one.folder = self.root / f"part-{quote(name, safe=' ')}"
        return one

    def due(self, step: int, per_epoch: int) -> bool:
        """Whether one is to be saved after this step, counted from 1."""
        return step % (self.every or per_epoch) == 0

    def save(self, state: State) -> str | None:
        """Save one and drop those beyond `keep`; where the disk refuses, gives the cause and the last one stays."""
        target = self.folder / f"step-{state.step:06d}"
        try:
            if not (self.root / HEADER).exists():
                self._describe()
            shutil.rmtree(target, ignore_errors=True)  # there only if it was broken
            _check_space(state, self.root)
            with disk_errors(target), atomic_folder(target) as work:
                _write(state, work)
        except (OSError, InputError) as error:
            return reason(error)
        kept = [each for each in self._steps() if _step_of(each) <= state.step][-self.keep :]
        for other in self._steps():  # a later one was broken: this training has gone on from before it
            if other not in kept:
                shutil.rmtree(other, ignore_errors=True)
        return None

    def newest(self) -> State | None:
        """The newest whole one; `note` is told which were skipped, and why."""
        for folder in reversed(self._steps()):
            try:
                state = _read(folder)
            except InputError as error:
                self.note(f"skipped checkpoint {folder.relative_to(self.root.parent)}: {error}")
            else:
                return state
        return None

    def discard(self) -> None:
        """Remove them all, of every part."""
        shutil.rmtree(self.root, ignore_errors=True)

    @contextmanager
    def until_saved(self) -> Iterator[None]:
        """Remove them when the block ends well; whatever else ends it is told where they are, and how to go on."""
        try:
            yield
        except BaseException as error:
            last = self._last()
            if not last:
                self.discard()  # nothing but the header
            elif isinstance(error, InputError):
                error.message, error.args = f"{error.message}; {last}", (f"{error}; {last}",)
            else:
                self.note(last)
            raise
        self.discard()

    def _last(self) -> str:
        newest = max(self._all(), key=lambda folder: folder.stat().st_mtime_ns, default=None)
        if newest is None:
            return ""
        return (
            f"the last checkpoint is {newest.relative_to(self.root.parent)}: the same command goes on from there, "
            "with --restart it begins anew"
        )

    def _all(self) -> Iterator[Path]:
        """The checkpoints of every part."""
        return self.root.glob("**/step-*")

    def _steps(self) -> list[Path]:
        """This part's, the oldest first."""
        return sorted((each for each in self.folder.glob("step-*") if each.name[5:].isdigit()), key=_step_of)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _check_space(state: State, folder: Path) -> None:
    """`InputError` where the disk has no room for a checkpoint: half of one would fill it for everybody else."""
    needed = sum(each.nbytes for each in state.tensors.values())
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise InputError(f"needs {needed / 2**20:.1f} MiB, and {free / 2**20:.1f} MiB are free on the disk")


def _write(state: State, folder: Path) -> None:
    """A checkpoint's files; the manifest comes last."""
    from safetensors.torch import save_file

    save_file(state.tensors, str(folder / TENSORS))
    numbers = {"step": state.step, "steps": state.steps, "tokens": state.tokens, "seconds": state.seconds}
    (folder / NUMBERS).write_text(dump_line(numbers) + "\n", encoding="utf-8")
    with (folder / RECORDS).open("w", encoding="utf-8") as file:
        file.writelines(dump_line(record) + "\n" for record in state.records)
    files = {
        name: {"bytes": (folder / name).stat().st_size, "sha256": file_digest(folder / name)}
        for name in (TENSORS, NUMBERS, RECORDS)
    }
    (folder / MANIFEST).write_text(dump_line({"format": FORMAT, "files": files}) + "\n", encoding="utf-8")


def _read(folder: Path) -> State:
    """A checkpoint whose files are all what the manifest says; else an `InputError` that names the one that is not."""
    from safetensors.torch import load_file

    files = read_described(folder / MANIFEST, FORMAT).get("files")
    for name in (TENSORS, NUMBERS, RECORDS):
        told, path = files.get(name) if isinstance(files, dict) else None, folder / name
        if not isinstance(told, dict):
            raise InputError(f"says nothing of {name}", file=folder / MANIFEST)
        if not path.is_file():
            raise InputError("is missing", file=path)
        if path.stat().st_size != told.get("bytes"):
            raise InputError(f"is {path.stat().st_size} bytes long instead of {told.get('bytes')}", file=path)
        if file_digest(path) != told.get("sha256"):
            raise InputError("does not hold what was written (its SHA-256 differs)", file=path)
    numbers = read_json(folder / NUMBERS)
    with (folder / RECORDS).open(encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    return State(tensors=load_file(str(folder / TENSORS)), records=records, **numbers)
