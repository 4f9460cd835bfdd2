"""Numbers on their way to trackers: what they are told, and what happens when one fails, hangs or comes back."""

from __future__ import annotations

import math
import threading

import pytest

from paretune.errors import InputError
from paretune.tracking import check_trackers, report, reporting
from paretune.tracking.trackers import KINDS, Kind

ALL = ("mlflow", "tensorboard", "trackio", "wandb")
MODULES = {"tensorboard": "tensorboardX"}
SETTINGS = {"method": "sft", "settings": {"lr": 0.1, "head": {"width": 8}, "betas": [0.9, 0.95]}}


def test_every_tracker_is_told_the_same_numbers(calls, tmp_path, capsys):
    with reporting(ALL, tmp_path / "my policy", tmp_path / "s.json", SETTINGS) as to:
        to.record({"step": 1, "epoch": 0, "loss": 2.5})
        to.record({"step": 2, "warning": "no checkpoint could be saved"})
        to.record({"step": 2, "epoch": 0, "loss": 1.5, "skipped": "loss", "rows": ["a"], "ok": True, "bad": math.nan})
        to.figures({"accuracy": 0.75}, part="final")
    for name in ALL:
        assert calls.logged(MODULES.get(name, name)) == {
            1: {"epoch": 0.0, "loss": 2.5},
            2: {"epoch": 0.0, "loss": 1.5, "final/accuracy": 0.75},
        }
    assert capsys.readouterr().out == ""


def test_a_run_begins_with_its_settings_and_ends(calls, tmp_path):
    with reporting(ALL, tmp_path / "my policy", tmp_path / "s.json", SETTINGS):
        pass
    flat = {"method": "sft", "settings.lr": 0.1, "settings.head.width": 8, "settings.betas": "[0.9, 0.95]"}
    (begun,) = calls.of("wandb", "begin")
    key = begun["id"]
    assert key.startswith("my-policy-") and len(key) == len("my-policy-") + 6
    assert begun == {"project": "paretune", "id": key, "name": "my policy", "resume": "allow", "config": flat}
    assert calls.of("trackio", "begin") == [{"project": "paretune", "name": key, "resume": "allow", "config": flat}]
    assert calls.of("tensorboardX", "begin") == [{"folder": str(tmp_path / "tensorboard" / key)}]
    assert "settings.head.width: 8" in calls.of("tensorboardX", "text")[0]["text"]
    assert calls.of("mlflow", "begin") == [{"id": None, "name": key}]
    assert calls.of("mlflow", "params") == [{"values": {name: str(value) for name, value in flat.items()}}]
    assert calls.of("wandb", "finish") == [{"code": 0}] and calls.of("mlflow", "finish") == [{"status": "FINISHED"}]
    assert calls.of("trackio", "finish") == calls.of("tensorboardX", "finish") == [{}]


def test_where_trackers_keep_it_is_the_environments(calls, tmp_path, monkeypatch):
    for name in ("WANDB_PROJECT", "TRACKIO_PROJECT", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.setenv(name, "tea")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "elsewhere"))
    with reporting(ALL, tmp_path / "p", tmp_path / "s.json", {}):
        pass
    assert calls.of("wandb", "begin")[0]["project"] == calls.of("trackio", "begin")[0]["project"] == "tea"
    assert calls.of("mlflow", "experiment") == [{"name": "tea"}]
    assert calls.of("tensorboardX", "begin")[0]["folder"].startswith(str(tmp_path / "elsewhere" / "p-"))


def test_a_training_that_goes_on_is_the_same_run(calls, tmp_path):
    state = tmp_path / "s.json"
    with pytest.raises(KeyboardInterrupt), reporting(ALL, tmp_path / "p", state, SETTINGS) as to:
        to.record({"step": 1, "loss": 3.0})
        to.record({"step": 2, "loss": 2.0})
        raise KeyboardInterrupt
    with reporting(ALL, tmp_path / "p", state, SETTINGS) as to:
        to.record({"step": 1, "loss": 3.0}, again=True)
        to.record({"step": 2, "loss": 2.0})
        to.record({"step": 3, "loss": 1.0})
    assert [each["status"] for each in calls.of("mlflow", "finish")] == ["FAILED", "FINISHED"]
    assert [each["code"] for each in calls.of("wandb", "finish")] == [1, 0]
    assert [each["id"] for each in calls.of("mlflow", "begin")] == [None, "its-own-id"]
    assert len(calls.of("mlflow", "params")) == len(calls.of("tensorboardX", "text")) == 1
    for name, key in (("wandb", "id"), ("trackio", "name"), ("tensorboardX", "folder")):
        first, second = (each[key] for each in calls.of(name, "begin"))
        assert first == second
    for name in ("mlflow", "trackio", "wandb"):
        assert [each["step"] for each in calls.of(name, "log")] == [1, 2, 2, 3]


@pytest.mark.parametrize("text", ["not json", '{"format": 1, "id": "../../etc", "known": {}}', '{"format": 9}'])
def test_a_state_that_cannot_be_read_begins_a_new_run(calls, tmp_path, text):
    state = tmp_path / "s.json"
    state.write_text(text)
    with reporting(("wandb",), tmp_path / "p", state, {}):
        pass
    assert calls.of("wandb", "begin")[0]["id"].startswith("p-")


def test_steps_are_counted_through_parts(calls, tmp_path):
    with reporting(("wandb",), tmp_path / "p", tmp_path / "s.json", {}) as to:
        to.record({"part": "brevity", "step": 1, "loss": 3.0})
        to.record({"part": "cheer", "step": 1, "loss": 2.0})
        to.skip(10)
        to.record({"step": 1, "loss": 1.0}, part="round-2")
    assert calls.logged() == {1: {"brevity/loss": 3.0}, 2: {"cheer/loss": 2.0}, 13: {"round-2/loss": 1.0}}


@pytest.mark.parametrize("call", ["begin", "log", "finish"])
def test_a_tracker_that_fails_is_told_of_once(calls, tmp_path, monkeypatch, call):
    monkeypatch.setenv("FAKE_TROUBLE", f"wandb.{call}")
    notes: list[str] = []
    with reporting(("wandb", "trackio"), tmp_path / "p", tmp_path / "s.json", {}, notes.append) as to:
        for step in range(1, 6):
            to.record({"step": step, "loss": 1.0 / step})
    assert notes == [
        "wandb takes no more numbers of this run (ConnectionError: the network is gone); train.jsonl has them all"
    ]
    assert len(calls.logged("trackio")) == 5


@pytest.fixture
def hanging(monkeypatch):
    """A tracker that answers nothing until it is let go."""
    wait = threading.Event()

    class Hanging:
        def log(self, values, step):
            wait.wait(30)

        def finish(self, failed):
            return

    monkeypatch.setitem(KINDS, "wandb", Kind(lambda key, remember: Hanging(), ("wandb",)))
    yield
    wait.set()


def test_a_tracker_that_hangs_keeps_nobody(hanging, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PATIENCE", 0.05)
    notes: list[str] = []
    with reporting(("wandb",), tmp_path / "p", tmp_path / "s.json", {}, notes.append) as to:
        to.record({"step": 1, "loss": 1.0})
    assert len(notes) == 1 and "has not taken them all within 0.05 seconds" in notes[0]


def test_what_waits_for_a_tracker_is_bounded(hanging, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PATIENCE", 0.05)
    monkeypatch.setattr(report, "MOST_WAITING", 3)
    notes: list[str] = []
    with reporting(("wandb",), tmp_path / "p", tmp_path / "s.json", {}, notes.append) as to:
        for step in range(1, 50):
            to.record({"step": step, "loss": 1.0})
    assert len(notes) == 1 and "it is 3 steps behind" in notes[0]


def test_one_of_several_processes_reports(calls, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with reporting(ALL, tmp_path / "p", tmp_path / "s.json", {}) as to:
        to.record({"step": 1, "loss": 1.0})
    assert calls.of("wandb") == [] and not (tmp_path / "s.json").exists()


def test_names_of_trackers(calls):
    assert check_trackers(()) == () and check_trackers("wandb") == ("wandb",)
    assert check_trackers(["wandb, mlflow", "wandb"]) == ("wandb", "mlflow")
    with pytest.raises(InputError, match=r"field 'report_to': unknown tracker 'wandbb'\. Did you mean 'wandb'\?"):
        check_trackers("wandbb")
    with pytest.raises(InputError, match="unknown tracker ''"):
        check_trackers("wandb,")


def test_a_tracker_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("paretune.tracking.trackers.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"'tensorboard' is not installed: pip install tensorboard$"):
        check_trackers("tensorboard")
