"""The folder in which rounds work, beside the output: what is finished there is not done again.

    .NAME.improve/
      improve.json           format version, and what the rounds are of: only the same call goes on with them
      tracking.json          under which name trackers know the rounds, where they are reported to any
      start/                 validation of the policy that rounds start from
        answers.jsonl        answers, journalled while they are written
        validated.jsonl      the same with their scores
      round-1/
        samples.jsonl        samples of the training prompts
        scored.jsonl         the same with their scores
        mixture.jsonl        the rows trained on, for a person to look at
        policy/              the trained policy (checkpoints lie beside it until then)
        answers.jsonl, validated.jsonl
        round.json           the account of the round, written last

Every file and folder appears whole or not at all, so what is there is finished.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.files import read_described, write_json
from paretune.tracking import STATE
from paretune.training.provenance import check_same

FORMAT = 1
HEADER = "improve.json"
GOES_ON = "the same command goes on from there"


class Work:
    """The work folder of the rounds into `out`: a new one, or the one that an earlier run left."""

    def __init__(
        self,
        out: Path,
        identity: Mapping[str, Any],
        *,
        restart: bool,
        force: bool = False,
        note: Callable[[str], None],
    ) -> None:
        """Raises `InputError` where what lies there is of another call; `restart` discards it, and `force` goes on
        where it is only other code that wrote it."""
        self.folder = out.with_name(f".{out.name}.improve")
        self.note = note
        if restart:
            self.remove()
        header = self.folder / HEADER
        if header.exists():
            self._check(read_described(header, FORMAT), identity, force)
        else:
            self.remove()  # a folder without a header holds nothing yet
            self._describe(identity)

    def _describe(self, identity: Mapping[str, Any]) -> None:
        write_json(self.folder / HEADER, {"format": FORMAT, **identity})

    def _check(self, before: Mapping[str, Any], now: Mapping[str, Any], force: bool) -> None:
        if not check_same(before, now, place=self.folder, what="unfinished rounds", force=force, note=self.note):
            self._describe(now)
        if self._anything():
            self.note(f"continuing the rounds in {self.folder.name}")

    def part(self, name: str) -> Path:
        """The folder of one part of the work."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    def _anything(self) -> bool:
        return any(each.is_file() and each.name not in (HEADER, STATE) for each in self.folder.rglob("*"))

    def remove(self) -> None:
        """The work is done, or not wanted. Renamed first: a half-removed folder is never taken for one."""
        done = self.folder.with_name(f"{self.folder.name}.done")
        shutil.rmtree(done, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(done)
            shutil.rmtree(done, ignore_errors=True)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Say of whatever ends the block where what was done is, and how to go on; nothing done leaves nothing."""
        kept = f"what was done so far is kept in {self.folder.name}, and {GOES_ON}"
        try:
            yield
        except BaseException as error:
            if not self._anything():
                self.remove()
                raise
            if isinstance(error, InputError) and GOES_ON not in str(error):
                error.message, error.args = f"{error.message}; {kept}", (f"{error}; {kept}",)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InputError(f"the disk is full ({error.strerror}); {kept}", file=self.folder.parent) from error
            if not isinstance(error, InputError):
                self.note(kept)
            raise
