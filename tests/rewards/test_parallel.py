"""Several processes, or a Ray cluster, give what one process gives; what goes wrong in them is told as it is in one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from paretune.data import read_rows
from paretune.errors import InputError
from paretune.profile import Objective
from paretune.rewards import score
from paretune.rewards import spec as registry
from paretune.rewards.base import RewardKind
from paretune.rewards.cluster import ChunkScorer
from paretune.rewards.measure import Answers
from paretune.rewards.parallel import threads
from paretune.rewards.spec import parse_objective
from tiny_classifiers import LABELS

REWARD = """
import os, signal, time

def measured(prompts, completions, id, **columns):
    if "r33" in id and os.path.exists("fault"):
        how = open("fault").read()
        if how == "raise":
            raise RuntimeError("boom")
        os.remove("fault")
        os.kill(os.getpid(), signal.SIGKILL)
    if os.path.exists("hold"):
        open(f"pid-{os.getpid()}", "w").close()
        time.sleep(600)
    return [float(len(text)) + len(prompt) / 8 for prompt, text in zip(prompts, completions)]

def share(prompts, completions, **columns):
    time.sleep(0.2)  # so that the other process gets its chunks
    gpu = float(os.environ["CUDA_VISIBLE_DEVICES"])
    return [1000 * float(os.environ["OMP_NUM_THREADS"]) + gpu] * len(completions)
"""
OBJECTIVES = ["m=python:parallel_reward:measured", "b=lexical:brevity", "o=column:other"]
BOTH = {"chunk_size": 10, "workers": 2}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with 60 rows and a reward module."""
    (tmp_path / "parallel_reward.py").write_text(REWARD)
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    rows = [
        {"id": f"r{at}", "prompt": talk if at % 9 == 8 else f"p{at}", "other": at, "completions": ["x " * at, "yé"]}
        for at in range(60)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def found(path: str, name: str) -> list[float | None]:
    return [item.scores[name] for row in read_rows(path) for item in row.completions]


def test_two_processes_give_what_one_gives(place: Path) -> None:
    score("rows.jsonl", OBJECTIVES, "one.jsonl", chunk_size=10)
    score("rows.jsonl", OBJECTIVES, "two.jsonl", **BOTH)
    assert Path("two.jsonl").read_bytes() == Path("one.jsonl").read_bytes()


def test_every_output_of_a_model_in_two_processes(place: Path, tiny_classifier: Path) -> None:
    spec = f"*=hf:{tiny_classifier}#*"
    score("rows.jsonl", [spec], "one.jsonl", chunk_size=40)
    score("rows.jsonl", [spec], "two.jsonl", chunk_size=40, workers=2)
    for name in LABELS:
        one, two = found("one.jsonl", name), found("two.jsonl", name)
        assert two == pytest.approx(one, abs=1e-5) and len(set(one)) > 1


def test_processes_share_the_cores_and_the_gpus(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    score("rows.jsonl", ["s=python:parallel_reward:share"], "out.jsonl", **BOTH)
    each = max(1, len(os.sched_getaffinity(0)) // 2)
    assert set(found("out.jsonl", "s")) == {1000.0 * each + 4, 1000.0 * each + 7}


def test_the_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads(workers) for workers in (1, 2, 3, 20)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [threads(workers) for workers in (1, 2, 3)] == [3, 3, 2]


def test_a_reward_that_raises_in_a_process_names_the_row(place: Path) -> None:
    Path("fault").write_text("raise")
    with pytest.raises(InputError, match=r"objective 'm', row 'r33': .*boom.*is kept in \.out\.jsonl\.scoring"):
        score("rows.jsonl", OBJECTIVES, "out.jsonl", **BOTH)
    Path("fault").unlink()
    told: list[str] = []
    score("rows.jsonl", OBJECTIVES, "out.jsonl", note=told.append)
    assert told[0].startswith("continuing: ") and len(found("out.jsonl", "m")) == 120


def test_a_process_that_is_killed_is_told_and_the_journal_stays(place: Path) -> None:
    Path("fault").write_text("kill")
    with pytest.raises(InputError, match=r"a scoring process was killed by SIGKILL; perhaps memory ran out.*is kept"):
        score("rows.jsonl", OBJECTIVES, "out.jsonl", **BOTH)
    score("rows.jsonl", OBJECTIVES, "one.jsonl", chunk_size=10)
    score("rows.jsonl", OBJECTIVES, "out.jsonl", **BOTH)
    assert Path("out.jsonl").read_bytes() == Path("one.jsonl").read_bytes()


def test_a_reward_that_cannot_be_built_in_a_process(place: Path) -> None:
    rows = [{"prompt": f"p{at}", "completions": ["x" * 300_000]} for at in range(4)]  # more than a pipe holds
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="there is no Python module 'not_there'"):
        score("rows.jsonl", ["x=python:not_there:f"], "out.jsonl", chunk_size=1, workers=2)
    assert [each.name for each in place.iterdir() if each.name.startswith(".")] == []
    score("rows.jsonl", OBJECTIVES[:2], "out.jsonl", chunk_size=1, workers=2)
    assert found("out.jsonl", "b") == [-1.0] * 4


def test_a_reward_of_one_process_stays_in_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Here:
        can_score_new = True

        def __call__(self, prompts: Any, completions: list[str], columns: Any) -> list[float | None]:
            return [float(os.getpid())] * len(completions)

    kind = RewardKind("here", (), build=lambda rest, remote: Here(), check=lambda rest: None, parallel=False)
    monkeypatch.setattr(registry, "_KINDS", {"here": kind})
    score("rows.jsonl", [Objective("h", "here:"), "b=lexical:brevity"], "out.jsonl", **BOTH)
    assert set(found("out.jsonl", "h")) == {float(os.getpid())}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_parent_though_they_are_at_work(place: Path, how: signal.Signals) -> None:
    Path("hold").touch()
    arguments = ["score", "rows.jsonl", "--objective", OBJECTIVES[0], "--out", "out.jsonl", "--workers", "2"]
    parent = subprocess.Popen([sys.executable, "-m", "paretune", *arguments, "--chunk-size", "10"])
    try:
        wait_for(lambda: len(list(place.glob("pid-*"))) == 2)
    finally:
        parent.send_signal(how)
    assert parent.wait() == (143 if how == signal.SIGTERM else -9)
    children = [int(path.name.removeprefix("pid-")) for path in place.glob("pid-*")]
    wait_for(lambda: not any(alive(child) for child in children))


def alive(process: int) -> bool:
    """Whether a process runs; one that nobody waits for is dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_ray_cluster_goes_on_to_what_one_process_gives(place: Path) -> None:
    pytest.importorskip("ray")
    score("rows.jsonl", OBJECTIVES, "one.jsonl", chunk_size=10)
    Path("fault").write_text("raise")
    with pytest.raises(InputError, match="row 'r33'"):
        score("rows.jsonl", OBJECTIVES, "ray.jsonl", chunk_size=10)
    Path("fault").unlink()
    before, told = signal.getsignal(signal.SIGTERM), list[str]()
    score("rows.jsonl", OBJECTIVES, "ray.jsonl", ray="local", note=told.append, **BOTH)
    assert told[0] == "continuing: 6 of 12 chunks of objective 'm' were scored"
    assert Path("ray.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_actor_tells_an_error_as_it_is(place: Path) -> None:
    Path("fault").write_text("raise")
    recipe = {"objectives": [parse_objective(OBJECTIVES[0]).to_dict()], "batch_size": 4, "allow_remote_code": False}
    answers = Answers([[{"role": "user", "content": "p"}]] * 2, ["a", "b"], {"id": ["r32", "r33"]}, ["r32", "r33"])
    task = json.dumps({"number": 3, "only": ["m"], "answers": asdict(answers)})
    (text,) = ChunkScorer(recipe)({"task": [task]})["outcome"]
    assert json.loads(text)["number"] == 3
    assert json.loads(text)["error"].startswith("objective 'm', row 'r33': ")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1"])
def test_a_ray_cluster_that_is_not_there(place: Path, address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(InputError, match=f"there is no Ray cluster at '{address}': .*refused"):
        score("rows.jsonl", OBJECTIVES, "out.jsonl", ray=address)


def test_without_ray(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'paretune\[ray\]'"):
        score("rows.jsonl", OBJECTIVES, "out.jsonl", ray="local")
