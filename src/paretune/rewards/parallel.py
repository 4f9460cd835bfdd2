"""Scoring in several processes of this machine: chunks go out, what the rewards say of them comes back.

Each process is spawned (it shares nothing with the parent), builds the rewards once, and has its share of the cores
and, where there are several GPUs, one of them. A process that dies (out of memory, most likely) ends the scoring with
an error. The processes end with their parent, however it ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.rewards.measure import Outcome, Recipe, Task, told

GRACE = 5.0
"""Seconds that a process has to end before it is killed."""


@dataclass(frozen=True)
class Failure:
    """Why a process could not score a chunk (-1: could not build the rewards)."""

    number: int
    message: str


@dataclass
class _Worker:
    """A process. `awaited` is whether it owes a message: that it is ready, or what came of its task."""

    process: Any
    pipe: Connection
    awaited: bool = True
    size: int = 0
    """Completions of its task."""


def run_in_processes(
    recipe: Recipe, tasks: Iterable[Task], workers: int, done: Callable[[int], None]
) -> Generator[Outcome, None, None]:
    """Score in `workers` processes (no more than there are tasks); outcomes come as they are ready, in any order.

    A script that uses this needs the usual `if __name__ == "__main__":`, as everything that spawns processes does.

    Raises:
        InputError: of the first chunk (by number) whose reward fails, when the chunks before it have come; or that a
            process has died.
    """
    source = iter(tasks)
    first = list(islice(source, workers))
    waiting = chain(first, source)
    failures: list[Failure] = []
    pool: list[_Worker] = []
    try:
        pool += [_start(recipe, number, workers) for number in range(len(first))]
        upcoming = next(waiting, None)  # read while the processes are at work
        while awaited := [worker for worker in pool if worker.awaited]:
            ready = wait([worker.pipe for worker in awaited])
            for worker in (each for each in awaited if each.pipe in ready):
                size, result = worker.size, _receive(worker)
                if isinstance(result, Failure):
                    failures.append(result)
                if upcoming is not None and not failures:
                    _send(worker, upcoming)
                    upcoming = None
                if isinstance(result, Outcome):
                    yield result
                    done(size)
                if upcoming is None and not failures:
                    upcoming = next(waiting, None)
        if failures:
            raise InputError(min(failures, key=lambda failure: failure.number).message)
    finally:
        for worker in pool:
            worker.pipe.close()
            worker.process.terminate()
        for worker in pool:
            worker.process.join(GRACE)
            worker.process.kill()


def _start(recipe: Recipe, number: int, workers: int) -> _Worker:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, recipe, number, workers), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _send(worker: _Worker, task: Task) -> None:
    worker.size, worker.awaited = len(task.answers.texts), True
    try:
        worker.pipe.send(task)
    except OSError:
        raise _death(worker) from None


def _receive(worker: _Worker) -> Outcome | Failure | None:
    """What came of the worker's task; None says that it is ready for the first."""
    worker.awaited = False
    try:
        result: Outcome | Failure | None = worker.pipe.recv()
    except (EOFError, OSError):
        raise _death(worker) from None
    return result


def _death(worker: _Worker) -> InputError:
    worker.process.join()
    code = worker.process.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with status {code}"
    hint = "; perhaps memory ran out: try fewer workers or a smaller batch size" if code == -signal.SIGKILL else ""
    return InputError(f"a scoring process {how}{hint}")


def _work(pipe: Connection, recipe: Recipe, number: int, workers: int) -> None:
    """What a process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the parent ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    share_machine(number, workers)
    try:
        scorer = recipe.build()
    except Exception as error:
        _answer(pipe, Failure(-1, told(error)))
        return
    limit_threads(workers)
    _answer(pipe, None)
    while True:
        try:
            task: Task = pipe.recv()
        except (EOFError, OSError):  # the parent is done
            return
        try:
            result: Outcome | Failure = Outcome(task.number, task.key, scorer(task.answers, only=task.only))
        except Exception as error:
            result = Failure(task.number, told(error))
        _answer(pipe, result)


def _end_with_parent() -> None:
    """A killed parent can end nobody: without this, a process would hold its GPU until its chunk is done."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _answer(pipe: Connection, result: Outcome | Failure | None) -> None:
    try:
        pipe.send(result)
    except OSError:  # nobody is there to read it
        sys.exit(1)


def share_machine(number: int, workers: int) -> None:
    """Give this process, number `number` of `workers`, its share of the cores and one GPU of several, in turn.

    Both are environment variables, which torch reads when it is first imported or first asks for a GPU.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads(workers))
    gpus = _gpus()
    if len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


def limit_threads(workers: int) -> None:
    """The share of the cores again, for a torch that was imported before `share_machine` could tell it."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads(workers))


def threads(workers: int) -> int:
    """Threads of each of `workers` processes: the cores divided, and no more than OMP_NUM_THREADS says."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, cores // workers)
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(share, int(told)) if told.isdecimal() and int(told) else share


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    if told is not None:
        return [name for name in told.split(",") if name]
    return [str(at) for at, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]
