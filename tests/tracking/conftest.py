"""Fixtures of tracking: trackers of the same calls as the real ones, and small trainings to report on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paretune.methods import train
from paretune.tracking import trackers

SETTINGS = ("dtype=float32", "epochs=1", "batch_size=5", "lora_r=4", "save_every=1", "validation=0.2")

HEAD = """
import json, os
TROUBLE = os.environ.get("FAKE_TROUBLE", "")
def told(call, **values):
    print("a tracker prints")
    with open(os.environ["FAKE_CALLS"], "a") as file:
        file.write(json.dumps([NAME, call, values]) + "\\n")
    if TROUBLE == f"{NAME}.{call}":
        raise ConnectionError("the network is gone")
"""
FAKES = {
    "wandb": """
class Run:
    def log(self, values, step=None): told("log", values=values, step=step)
    def finish(self, exit_code=None): told("finish", code=exit_code)
def init(project=None, id=None, name=None, resume=None, config=None):
    told("begin", project=project, id=id, name=name, resume=resume, config=config)
    return Run()
""",
    "trackio": """
class Run:
    def log(self, values, step=None): told("log", values=values, step=step)
    def finish(self): told("finish")
def init(project, name=None, resume="never", config=None):
    told("begin", project=project, name=name, resume=resume, config=config)
    return Run()
""",
    "mlflow": """
from types import SimpleNamespace
def set_experiment(name): told("experiment", name=name)
def start_run(run_id=None, run_name=None):
    told("begin", id=run_id, name=run_name)
    return SimpleNamespace(info=SimpleNamespace(run_id=run_id or "its-own-id"))
def log_params(values): told("params", values=values)
def log_metrics(values, step=None): told("log", values=values, step=step)
def end_run(status=None): told("finish", status=status)
""",
    "tensorboardX": """
class SummaryWriter:
    def __init__(self, folder): told("begin", folder=folder)
    def add_text(self, name, text): told("text", name=name, text=text)
    def add_scalar(self, name, value, global_step=None): told("log", values={name: value}, step=global_step)
    def close(self): told("finish")
""",
}


class Calls:
    """What trackers were told, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def of(self, tracker: str, call: str | None = None) -> list[Any]:
        """The arguments of a tracker's calls, or of those of one name; without it (name, arguments)."""
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        own = [(name, values) for who, name, values in lines if who == tracker]
        return own if call is None else [values for name, values in own if name == call]

    def logged(self, tracker: str = "wandb") -> dict[int, dict[str, float]]:
        """Numbers by step."""
        out: dict[int, dict[str, float]] = {}
        for each in self.of(tracker, "log"):
            out.setdefault(each["step"], {}).update(each["values"])
        return out


@pytest.fixture
def calls(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """All trackers, installed; what they are told is kept."""
    folder = tmp_path_factory.mktemp("trackers")
    for name, text in FAKES.items():
        (folder / f"{name}.py").write_text(f"NAME = {name!r}\n{HEAD}{text}")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(trackers, "find_spec", lambda name: name if name in FAKES else None)
    for name in ("WANDB_PROJECT", "TRACKIO_PROJECT", "MLFLOW_EXPERIMENT_NAME", "TENSORBOARD_LOGGING_DIR", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAKE_CALLS", str(folder / "calls.jsonl"))
    yield Calls(folder / "calls.jsonl")
    for name in FAKES:
        sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def quick(scored_rows: Path, tiny_llama: Path) -> Callable[..., Path]:
    """Train a policy in a blink."""

    def make(out: Path, *settings: str, method: str = "sft", **options: Any) -> Path:
        train(method, scored_rows, str(tiny_llama), out, settings=[*SETTINGS, *settings], **options)
        return out

    return make
