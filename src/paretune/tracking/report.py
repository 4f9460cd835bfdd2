"""A training's numbers on their way to the trackers that a person chose (`--report-to`).

train.jsonl has them all in any case. Each tracker has a thread of its own with a bounded queue, so training never waits
for a network; one that fails is told of once and let go of. What a training that goes on must know of its run (its id)
lies in a small file that shares the life of its checkpoints.
"""

from __future__ import annotations

import math
import os
import queue
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.files import read_described, write_json
from paretune.tracking.described import flat
from paretune.tracking.trackers import KINDS, RunKey, Tracker

FORMAT = 1
STATE = "tracking.json"
"""The file beside checkpoints that says under which id trackers know the run."""
MOST_WAITING = 10_000
"""Steps that a tracker may be behind."""
PATIENCE = 30.0
"""Seconds, at the end, for all trackers together to take what waits."""


class Report:
    """Numbers to all trackers, or to none. Steps are counted through, over all parts and rounds of a training."""

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self.sinks, self.step = sinks, 0

    def record(self, record: Mapping[str, Any], again: bool = False, *, part: str = "") -> None:
        """A record of a journal; `again`: an earlier process has told of it. `part` goes before the numbers' names."""
        if "warning" in record:
            return
        self.step += 1
        if not again:
            label = "/".join(text for text in (part, str(record.get("part", ""))) if text)
            self.figures({key: value for key, value in record.items() if key != "step"}, part=label)

    def skip(self, steps: int) -> None:
        """So many steps were done, and told of, by an earlier process."""
        self.step += steps

    def figures(self, values: Mapping[str, Any], *, part: str = "") -> None:
        """Numbers that belong to where the training stands; what is no finite number is left out."""
        if not self.sinks:
            return
        numbers = {
            f"{part}/{key}" if part else key: float(value)
            for key, value in values.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        }
        for sink in self.sinks:
            sink.send(numbers, self.step)

    def close(self, failed: bool) -> None:
        """Wait a little for what is on its way."""
        until = time.monotonic() + PATIENCE
        for sink in self.sinks:
            sink.end(failed)
        for sink in self.sinks:
            sink.wait(until)


class Sink:
    """One tracker in a thread of its own, which begins it, tells it everything, and ends it."""

    def __init__(self, name: str, begin: Callable[[], Tracker], note: Callable[[str], None]) -> None:
        self.name, self.begin, self.note = name, begin, note
        self.open, self.failed = True, False
        self.waiting: queue.Queue[tuple[dict[str, float], int] | None] = queue.Queue(MOST_WAITING)
        # a daemon: a tracker that hangs must not keep the process from its end
        self.thread = threading.Thread(target=self._work, name=f"report to {name}", daemon=True)
        self.thread.start()

    def send(self, values: dict[str, float], step: int) -> None:
        """Put numbers into the queue."""
        if self.open:
            try:
                self.waiting.put_nowait((values, step))
            except queue.Full:
                self._let_go(f"it is {MOST_WAITING} steps behind")

    def end(self, failed: bool) -> None:
        """No more numbers will come."""
        self.failed = failed
        with suppress(queue.Full):
            self.waiting.put_nowait(None)

    def wait(self, until: float) -> None:
        """Until the tracker has ended, or the clock (monotonic) says so."""
        self.thread.join(max(0.0, until - time.monotonic()))
        if self.thread.is_alive():
            self._let_go(f"it has not taken them all within {PATIENCE:g} seconds")

    def _work(self) -> None:
        tracker: Tracker | None = None
        try:
            tracker = self.begin()
            while (item := self.waiting.get()) is not None:
                tracker.log(*item)
            tracker.finish(self.failed)
        except (Exception, SystemExit) as error:  # whatever a library of others, or its network, comes up with
            self._let_go(f"{type(error).__name__}: {error}")
            if tracker is not None:
                with suppress(Exception):
                    tracker.finish(True)

    def _let_go(self, why: str) -> None:
        if self.open:
            self.open = False
            said = " ".join(why.split())[:300]
            self.note(f"{self.name} takes no more numbers of this run ({said}); train.jsonl has them all")


@contextmanager
def reporting(
    names: Sequence[str],
    out: Path,
    state: Path,
    settings: Mapping[str, Any],
    note: Callable[[str], None] | None = None,
) -> Iterator[Report]:
    """A report to the trackers `names` (see `check_trackers`) for the training into `out`, open inside the block.

    `state` is the file that keeps the run's id as long as the training is unfinished. `settings` may be nested; `note`
    is told of a tracker that fails. What trackers print goes to stderr, for stdout is the verb's own.
    """
    if not names or os.environ.get("RANK", "0") != "0":  # one of several processes reports
        yield Report()
        return
    key, remember = _opened(out, state, settings)

    def begin(name: str) -> Callable[[], Tracker]:
        return lambda: KINDS[name].begin(key, lambda found: remember(name, found))

    with redirect_stdout(sys.stderr):
        report, failed = Report([Sink(name, begin(name), note or (lambda text: None)) for name in names]), True
        try:
            yield report
            failed = False
        finally:
            report.close(failed)


def _opened(out: Path, state: Path, settings: Mapping[str, Any]) -> tuple[RunKey, Callable[[str, str], None]]:
    """The run's key, a new one or that of the training that goes on, and what keeps a tracker's own id of it."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", out.name).strip("-") or "run"
    key = RunKey(f"{plain}-{secrets.token_hex(3)}", out.name, out.parent, flat(settings))
    kept: dict[str, Any] = {"format": FORMAT, "id": key.id, "known": {}}
    with suppress(InputError):  # none yet, or one that cannot be read: then the run is a new one
        found = read_described(state, FORMAT)
        if re.fullmatch(r"[A-Za-z0-9_-]{1,255}", str(found.get("id"))) and isinstance(found.get("known"), dict):
            kept = found
            key = replace(key, id=found["id"], known=found["known"], goes_on=True)
    _keep(state, kept)

    def remember(name: str, found: str) -> None:
        kept["known"][name] = found
        if state.exists():  # else the training has ended meanwhile
            _keep(state, kept)

    return key, remember


def _keep(state: Path, kept: Mapping[str, Any]) -> None:
    """A disk that refuses costs the run its name in trackers after a break, and nothing else."""
    with suppress(OSError, InputError):
        write_json(state, kept)
