"""Scoring on a Ray cluster, by Ray Data: chunks go to actors that build the rewards once, outcomes come back here.

The rows are read and the journal is kept by this process alone; a chunk travels through the object store as a block of
JSON, so the nodes need no file of ours. They need paretune, the packages and models that the rewards load, and the
modules of Python rewards.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from paretune.errors import InputError
from paretune.files import dump_line
from paretune.profile import Objective
from paretune.rewards.measure import Answers, Measured, Outcome, Recipe, Task, told

INSTALL = "pip install 'paretune[ray]'"
CONNECT_SECONDS = 10


class ChunkScorer:
    """What an actor is: the rewards, built once."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        objectives = [Objective.from_dict(item) for item in recipe["objectives"]]
        self.build = Recipe(objectives, recipe["batch_size"], recipe["allow_remote_code"]).build
        self.scorer: Any = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """A batch of tasks as JSON to a batch of outcomes; an error travels as text, so that it is told as it was."""
        return {"outcome": [self._score(str(task)) for task in batch["task"]]}

    def _score(self, text: str) -> str:
        task = json.loads(text)
        try:
            self.scorer = self.scorer or self.build()
            found = self.scorer(Answers(**task["answers"]), only=task["only"])
            return dump_line({"number": task["number"], "found": {name: asdict(item) for name, item in found.items()}})
        except Exception as error:
            return dump_line({"number": task["number"], "error": told(error)})


def run_on_ray(
    recipe: Recipe, tasks: Iterable[Task], workers: int, address: str, done: Callable[[int], None]
) -> Generator[Outcome, None, None]:
    """Score by `workers` actors of the cluster at `address` ("local" starts one on this machine, for this call).

    Raises:
        InputError: Ray is not installed, there is no such cluster, an actor died, and what rewards raise.
    """
    waiting: dict[int, tuple[str, int]] = {}
    blocks: list[Any] = []
    with _Cluster(address, workers) as ray:
        for task in tasks:
            waiting[task.number] = task.key, len(task.answers.texts)
            blocks.append(ray.put(_block(task)))
        if not blocks:
            return
        for outcome in _outcomes(ray, recipe, blocks, workers):
            key, count = waiting[outcome["number"]]
            yield Outcome(outcome["number"], key, {name: Measured(**item) for name, item in outcome["found"].items()})
            done(count)


def _block(task: Task) -> Any:
    import pyarrow

    said = {"number": task.number, "only": task.only, "answers": asdict(task.answers)}
    return pyarrow.table({"task": [dump_line(said)]})


def _outcomes(ray: Any, recipe: Recipe, blocks: list[Any], workers: int) -> Iterator[dict[str, Any]]:
    """The outcomes as they come; the first that is an error raises."""
    plain = {
        "objectives": [objective.to_dict() for objective in recipe.objectives],
        "batch_size": recipe.batch_size,
        "allow_remote_code": recipe.allow_remote_code,
    }
    workers = min(workers, len(blocks))
    # an actor sees the GPUs that it asks for and no others
    gpus = min(1.0, ray.cluster_resources().get("GPU", 0) / workers)
    scored = ray.data.from_arrow_refs(blocks).map_batches(
        ChunkScorer,
        fn_constructor_args=(plain,),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=workers),
        num_gpus=gpus or None,
    )
    try:
        for row in scored.iter_rows():
            outcome = json.loads(row["outcome"])
            if "error" in outcome:
                raise InputError(outcome["error"])
            yield outcome
    except ray.exceptions.RayError as error:
        raise InputError(f"the Ray cluster failed: {str(error).strip().splitlines()[-1]}") from error


class _Cluster:
    """A quiet connection to a cluster; one that this process had already is used, and stays."""

    def __init__(self, address: str, workers: int) -> None:
        self.address, self.workers = address, workers
        self.ours = False

    def __enter__(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
        try:
            import ray
            import ray.data
        except ImportError:
            raise InputError(f"--ray needs Ray: {INSTALL}") from None
        if not ray.is_initialized():
            self._connect(ray)
            self.ours = True
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        return ray

    def _connect(self, ray: Any) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if self.address == "local":
            options |= {"include_dashboard": False, "num_cpus": max(self.workers, os.cpu_count() or 1)}
        before = signal.getsignal(signal.SIGTERM)  # Ray puts a handler of its own in its place
        try:
            self._knock()
            ray.init(address=self.address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise InputError(f"there is no Ray cluster at '{self.address}': {cause}") from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    def _knock(self) -> None:
        """Try the port of HOST:PORT: Ray itself would wait minutes for a machine that does not answer."""
        host, colon, port = self.address.removeprefix("ray://").rpartition(":")
        if colon and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()

    def __exit__(self, *error: object) -> None:
        if self.ours:
            import ray

            ray.shutdown()
