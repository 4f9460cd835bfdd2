"""Trackers of other houses, each behind the same two calls: trackio, Weights & Biases, TensorBoard, MLflow.

Every one goes on with a run that was broken off: by the run's own id (W&B, trackio), by the id that the tracker gave it
(MLflow), or in the same folder (TensorBoard). Where it keeps its numbers is the tracker's own affair, by its own
environment variables; the project is called `paretune` where they say nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from paretune.errors import InputError, did_you_mean

PROJECT = "paretune"
LONGEST = 500
"""Characters of a setting: what the oldest of MLflow's stores take."""
AT_ONCE = 100
"""Settings in one call to MLflow, which takes no more."""


@dataclass(frozen=True)
class RunKey:
    """A run as trackers know it.

    id: its own everywhere, of letters, digits, - and _. name: for people. beside: the folder that its output lies in.
    settings: flat, told once. known: what trackers said when the run began, by their names; {} for a new run.
    """

    id: str
    name: str
    beside: Path
    settings: Mapping[str, Any]
    known: Mapping[str, str] = field(default_factory=dict)
    goes_on: bool = False


class Tracker(Protocol):
    """One run in one tracker."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step."""

    def finish(self, failed: bool) -> None:
        """The run is over; `failed`: it did not end well."""


class WandB:
    """Weights & Biases."""

    def __init__(self, key: RunKey, remember: Callable[[str], None]) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.run = wandb.init(project=project, id=key.id, name=key.name, resume="allow", config=dict(key.settings))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step; those of a step that it has already it leaves as they are."""
        self.run.log(dict(values), step=step)

    def finish(self, failed: bool) -> None:
        """Upload the rest, and end."""
        self.run.finish(exit_code=int(failed))


class Trackio:
    """trackio, which knows a run by its name."""

    def __init__(self, key: RunKey, remember: Callable[[str], None]) -> None:
        import trackio

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self.run = trackio.init(project=project, name=key.id, resume="allow", config=dict(key.settings))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step."""
        self.run.log(dict(values), step=step)

    def finish(self, failed: bool) -> None:
        """End the run."""
        self.run.finish()


class TensorBoard:
    """Event files in tensorboard/ beside the output, or where TENSORBOARD_LOGGING_DIR says."""

    def __init__(self, key: RunKey, remember: Callable[[str], None]) -> None:
        writers = import_module("torch.utils.tensorboard" if find_spec("tensorboard") else "tensorboardX")
        folder = Path(os.environ.get("TENSORBOARD_LOGGING_DIR") or key.beside / "tensorboard")
        self.writer = writers.SummaryWriter(str(folder / key.id))
        if not key.goes_on:
            lines = "\n".join(f"    {name}: {value}" for name, value in key.settings.items())  # verbatim, in Markdown
            self.writer.add_text("settings", lines)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, global_step=step)

    def finish(self, failed: bool) -> None:
        """Close the file."""
        self.writer.close()


class MLflow:
    """MLflow, at MLFLOW_TRACKING_URI."""

    def __init__(self, key: RunKey, remember: Callable[[str], None]) -> None:
        import mlflow

        self.mlflow: Any = mlflow
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT))
        run = mlflow.start_run(run_id=key.known.get("mlflow"), run_name=key.id)
        remember(str(run.info.run_id))
        if "mlflow" not in key.known:
            told = [(_mlflow_name(name), str(value)[:LONGEST]) for name, value in key.settings.items()]
            for at in range(0, len(told), AT_ONCE):
                mlflow.log_params(dict(told[at : at + AT_ONCE]))

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers of a step."""
        self.mlflow.log_metrics({_mlflow_name(name): value for name, value in values.items()}, step=step)

    def finish(self, failed: bool) -> None:
        """End the run."""
        self.mlflow.end_run(status="FAILED" if failed else "FINISHED")


def _mlflow_name(name: str) -> str:
    """MLflow refuses other characters; objectives and parts may have any."""
    return re.sub(r"[^\w./ -]", "_", name)


@dataclass(frozen=True)
class Kind:
    """How a tracker is begun, and the packages one of which it needs."""

    begin: Callable[[RunKey, Callable[[str], None]], Tracker]
    packages: tuple[str, ...]


KINDS = {
    "mlflow": Kind(MLflow, ("mlflow",)),
    "tensorboard": Kind(TensorBoard, ("tensorboard", "tensorboardX")),
    "trackio": Kind(Trackio, ("trackio",)),
    "wandb": Kind(WandB, ("wandb",)),
}


def check_trackers(report_to: str | Sequence[str]) -> tuple[str, ...]:
    """The trackers that are meant: names, also several in one text with commas between, each once.

    Raises `InputError` for an unknown one, and for one that is not installed.
    """
    texts = [report_to] if isinstance(report_to, str) else list(report_to)
    names = [name.strip() for text in texts for name in str(text).split(",")]
    for name in names:
        if name not in KINDS:
            raise InputError(f"unknown tracker '{name}'.{did_you_mean(name, KINDS)}", field="report_to")
        packages = KINDS[name].packages
        if not any(find_spec(package) for package in packages):
            raise InputError(f"'{name}' is not installed: pip install {packages[0]}", field="report_to")
    return tuple(dict.fromkeys(names))
