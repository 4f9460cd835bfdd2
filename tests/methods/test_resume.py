"""A training that is killed and started again with the same command ends in the same folder, byte for byte."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from killing import content, same
from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods import train
from paretune.reward_model import train_reward_model
from paretune.training import checkpoint, loop
from tiny_models import make_tiny
from tiny_rewards import rows_of

SETTINGS = {
    "sga": (
        "head.width=16", "head.skip=false", "head_epochs=2", "head_warmup=2", "head.dropout=0.2", "sensed_share=1",
        "jitter=0.5", "weight_dpo=1",
    ),
    "dpo": (),
    "sft": (),
    "reward": ("bootstrap=20",),
}  # fmt: skip
SHARED = ("dtype=float32", "epochs=2", "batch_size=5", "lora_r=4", "lora_dropout=0.3", "save_every=2")


class Killed(BaseException):
    """As SIGKILL: nobody handles it."""


@pytest.fixture
def go(scored_rows, tiny_llama, tmp_path):
    """Trains `method` into `tmp_path/name` and gives the folder."""

    def run(method, name="policy", *settings, **options):
        out, chosen = tmp_path / name, [*SHARED, *SETTINGS[method], *settings]
        model = options.pop("model", str(tiny_llama))
        if method == "reward":
            data = tmp_path / "reward.jsonl"
            data.write_text("".join(json.dumps(row) + "\n" for row in rows_of()))
            train_reward_model(data, model, out, settings=chosen, **options)
        else:
            train(method, options.pop("data", scored_rows), model, out, settings=chosen, **options)
        return out

    return run


def after(function, count):
    """The function, which kills its `count`-th call."""
    calls = []

    def counted(*arguments, **options):
        calls.append(1)
        if len(calls) == count:
            raise Killed
        return function(*arguments, **options)

    return counted


def killed(monkeypatch, call, target, name, count=1):
    """`call`, killed in the `count`-th call of a function (its module may be hidden by a verb of the same name)."""
    module = sys.modules[target] if isinstance(target, str) else target
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, name, after(getattr(module, name), count))
        call()


def names(folder):
    return sorted(each.name for each in folder.iterdir())


# --- killed anywhere ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sga", "dpo", "sft", "reward"])
def test_killed_anywhere_it_ends_as_without_a_break(go, tmp_path, monkeypatch, method):
    plain = go(method, "plain")
    places = [(loop, "_accumulate", 4), (checkpoint, "_write", 2)]
    room = "paretune.reward_model.train" if method == "reward" else "paretune.methods.setup"
    places += [(room, "validate", 1)]
    places += [(room, "save_reward_model", 1) if method == "reward" else ("paretune.methods.train", "save_policy", 1)]
    notes, steps = [], []
    for place in places:
        killed(monkeypatch, lambda: go(method, note=notes.append), *place)
        steps += [int(re.search(r"step (\d+) of", each)[1]) for each in notes if "continuing" in each]
        notes.clear()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "_accumulate", after(loop._accumulate, 1))  # all steps are done
        same(go(method), plain)
    assert steps == [2, 4, read_json(plain / "metrics.json")["steps"]]
    assert {"policy", "plain"} <= set(names(tmp_path)) <= {"policy", "plain", "reward.jsonl"}  # nothing else is left


def test_really_killed(scored_rows, tiny_llama, tmp_path):
    script = Path(__file__).with_name("kill_and_resume.py")
    done = subprocess.run(
        [sys.executable, script, scored_rows, tiny_llama, tmp_path, *SHARED, "head.width=16", "head_epochs=0"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ends"] == [0, -signal.SIGKILL, -signal.SIGKILL, -signal.SIGKILL, 0]
    assert any(each.startswith(".step-000006.") for each in told["half"])  # what the kill left was half a checkpoint
    same(tmp_path / "policy", tmp_path / "plain")
    assert names(tmp_path) == ["plain", "policy"]


def test_a_training_that_goes_on_with_a_policy_resumes_too(go, monkeypatch, tmp_path):
    start = go("sft", "start")
    options = {"model": None, "start": start}
    plain = go("sft", "plain", "lr=1e-3", **options)
    killed(monkeypatch, lambda: go("sft", "policy", "lr=1e-3", **options), loop, "_accumulate", 4)
    shutil.copytree(start, tmp_path / "other")
    weights = tmp_path / "other" / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(InputError, match=r"another kind: start.adapter/adapter_model.safetensors is another"):
        go("sft", "policy", "lr=1e-3", model=None, start=tmp_path / "other")
    same(go("sft", "policy", "lr=1e-3", **options), plain)


def test_a_broken_checkpoint_is_skipped_for_the_one_before(go, monkeypatch, tmp_path):
    plain, notes = go("dpo", "plain"), []
    killed(monkeypatch, lambda: go("dpo", "policy", "keep=2"), loop, "_accumulate", 6)
    assert [each for each in names(tmp_path / ".policy.checkpoints") if "step" in each] == [
        "step-000002",
        "step-000004",
    ]
    state = tmp_path / ".policy.checkpoints" / "step-000004" / "state.safetensors"
    os.truncate(state, state.stat().st_size // 2)
    same(go("dpo", "policy", "keep=2", note=notes.append), plain)
    assert len(notes) == 2 and "continuing from step 2 of" in notes[1]
    assert re.search(r"skipped checkpoint .policy.checkpoints/step-000004: .*state.safetensors: is \d+ bytes", notes[0])


def test_no_pickle_lies_in_a_checkpoint(go, monkeypatch, tmp_path):
    killed(monkeypatch, lambda: go("sga"), loop, "_accumulate", 4)
    suffixes = {each.suffix for each in (tmp_path / ".policy.checkpoints").rglob("*") if each.is_file()}
    assert suffixes == {"", ".json", ".jsonl", ".safetensors"}  # "": the mark .paretune


# --- another training in its place --------------------------------------------------------------------------------


@pytest.fixture
def broken_off(go, monkeypatch, tmp_path):
    """An sft training that was killed after its second step."""
    killed(monkeypatch, lambda: go("sft"), loop, "_accumulate", 4)
    return tmp_path / ".policy.checkpoints"


def test_changed_settings_method_or_objectives_are_refused(go, broken_off):
    before = sorted(map(str, broken_off.rglob("*")))
    for call, difference in (
        (lambda: go("sft", "policy", "lr=0.01"), r"settings.lr was 0.0002 and is 0.01\. Pass --restart"),
        (lambda: go("sft", "policy", "seed=1"), r"settings.seed was 0 and is 1"),
        (lambda: go("dpo"), r"method was sft and is dpo"),
        (lambda: go("sft", objectives=["cheer"]), r"objectives.brevity is another"),
    ):
        with pytest.raises(InputError, match=rf"policy.checkpoints: holds an unfinished training .*{difference}"):
            call()
    assert sorted(map(str, broken_off.rglob("*"))) == before


def test_changed_data_model_and_versions_are_refused(go, broken_off, scored_rows, tmp_path, monkeypatch):
    rows = [json.loads(line) for line in scored_rows.read_text().splitlines()]
    rows[3]["completions"][0]["text"] += "!"
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match=r"another kind: rows is another"):
        go("sft", data=tmp_path / "rows.jsonl")
    with pytest.raises(InputError, match=r"another kind: base.fingerprint was \w+ and is"):
        go("sft", model=str(make_tiny(tmp_path / "model", "llama", seed=1)))
    monkeypatch.setattr("paretune.training.provenance.versions", lambda: {"torch": "1.0"})
    with pytest.raises(InputError, match=r"by other code: versions.*torch was 2.*Pass --force to go on"):
        go("sft")
    with pytest.raises(InputError, match=r"another kind: settings.lr .*Pass --restart"):
        go("sft", "policy", "lr=0.01", force=True)


def test_another_source_is_refused_and_force_goes_on(go, broken_off, monkeypatch):
    monkeypatch.setattr("paretune.training.provenance.source_digest", lambda: "0" * 16)
    with pytest.raises(InputError, match=r"by other code: source was \w{16} and is 0{16}\. Pass --force"):
        go("sft")
    notes = []
    policy = go("sft", force=True, note=notes.append)
    assert notes[0].startswith("going on by other code, as --force says: source was")
    assert "continuing from step 2 of" in notes[1] and (policy / "policy.json").exists()


def test_the_data_may_lie_elsewhere_and_checkpoints_may_come_at_other_steps(go, broken_off, scored_rows, tmp_path):
    plain = go("sft", "plain")
    shutil.copy(scored_rows, tmp_path / "copy.jsonl")
    shutil.copy(scored_rows.with_suffix(".objectives.json"), tmp_path / "copy.objectives.json")
    notes = []
    again = go("sft", "policy", "save_every=0", "keep=3", data=tmp_path / "copy.jsonl", note=notes.append)
    assert "continuing from step 2 of" in notes[0]
    one, two = content(again), content(plain)
    described = [json.loads(each.pop("policy.json")) for each in (one, two)]
    assert one == two
    for each in described:
        each["data"].pop("path"), each["digest"].pop("data")
    assert described[0] == described[1] and not {"save_every", "keep"} & described[0]["config"].keys()


def test_restart_begins_anew(go, broken_off, tmp_path):
    plain, notes = go("sft", "plain", "lr=0.01"), []
    same(go("sft", "policy", "lr=0.01", restart=True, note=notes.append), plain)
    assert notes == [] and names(tmp_path) == ["plain", "policy"]


def test_divergence_names_the_last_good_checkpoint(go, tmp_path):
    wanted = (
        r"stopped before the step: .*not finite.*; the last checkpoint is .policy.checkpoints/step-000001: the same"
    )
    with pytest.raises(InputError, match=wanted):
        go("sft", "policy", "lr=1e30", "clip=1e30", "schedule=constant", "save_every=1")
    assert names(tmp_path) == [".policy.checkpoints"]


# --- Ctrl-C -------------------------------------------------------------------------------------------------------


def test_ctrl_c_saves_and_says_how_to_go_on(go, scored_rows, tiny_llama, tmp_path):
    settings = [part for each in (*SHARED[:-1], "epochs=10", "save_every=1000") for part in ("--set", each)]
    command = [sys.executable, "-m", "paretune", "train", "sft", "--data", scored_rows, "--model", tiny_llama]
    command += ["--out", tmp_path / "policy", *settings]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    while running.poll() is None and not any(each.stat().st_size > 100 for each in tmp_path.glob(".policy.*.jsonl")):
        time.sleep(0.02)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 130 and out == "", err
    step = int(
        re.search(r"the last checkpoint is .policy.checkpoints/step-0000(\d\d): the same command goes on", err)[1]
    )
    assert err.strip().splitlines()[-1] == "interrupted" and "Traceback" not in err
    assert names(tmp_path) == [".policy.checkpoints"]
    notes = []
    go("sft", "policy", "epochs=10", note=notes.append)
    assert notes == [f"continuing from step {step} of 40 (.policy.checkpoints)"] and names(tmp_path) == ["policy"]
