"""`paretune improve` on the command line: what it prints, what it refuses, and a SIGKILL in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from improving import make_policy, write_data

FAST = "--max-new-tokens 8 --prompts-per-round 6 --validation-prompts 3 --set batch_size=5 --batch-size 8 --rounds 1"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    """A folder with `data.jsonl` and the policies `p` (sga) and `plain` (sft) that were trained on it."""
    folder = tmp_path_factory.mktemp("improve")
    data = write_data(folder / "data.jsonl")
    make_policy(data, tiny_llama, folder / "p")
    make_policy(data, tiny_llama, folder / "plain", "sft")
    (folder / "other.jsonl").write_text('{"prompt": "What is new?"}\n')
    return folder


def test_every_option_is_handed_on(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from paretune.methods.improve import ImproveResult

    got: dict[str, Any] = {}

    def spy(*arguments: Any, **options: Any) -> ImproveResult:
        got.update(options, arguments=arguments)
        return ImproveResult("new", 1, 0.4, 0.5, [{}, {}], {"stored": "it has no reward"}, "all done", "It rose.", 1.0)

    monkeypatch.setattr("paretune.methods.improve.improve", spy)
    options = "--rounds 3 -n 5 --prompts-per-round 7 --keep ric --originals 0.3 --delta 0.1 --patience 2 "
    options += "--validation-prompts 9 --set lr=1 --set epochs=3 --max-new-tokens 11 --temperature 0.5 --top-p 0.9 "
    options += "--seed 4 --batch-size 6 --skip-bad-rows --overwrite --restart --force --report-to trackio"
    done = invoke("improve", "p", "--data", "d.jsonl", "--out", "new", *options.split())
    assert done.exit_code == 0, done.output
    assert got.pop("arguments") == (Path("p"), "d.jsonl", Path("new"))
    for each in ("progress", "note"):
        assert callable(got.pop(each))
    assert got == dict(
        rounds=3, n=5, prompts_per_round=7, keep="ric", originals=0.3, delta=0.1, patience=2, validation_prompts=9,
        settings=("lr=1", "epochs=3"), max_new_tokens=11, temperature=0.5, top_p=0.9, seed=4, batch_size=6,
        skip_bad_rows=True, overwrite=True, restart=True, force=True, report_to=("trackio",),
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "objective 'stored' took no part: it has no reward",
        "new: It rose.",
        "ended after 2 of 3 rounds: all done",
        "next: paretune evaluate p new --data d.jsonl --out report",
    ]


@pytest.mark.parametrize(
    ("policy", "data", "more", "said"),
    [
        ("nothing", "data.jsonl", "", "no such policy folder"),
        ("p", "other.jsonl", "", "is not what the policy was trained on"),
        ("p", "missing.jsonl", "", "no such file"),
        ("plain", "data.jsonl", "", "a policy trained by 'sft' takes no profile"),
        ("p", "data.jsonl", "--temperature 0", "temperature must be above 0"),
        ("p", "data.jsonl", "--originals 1", "a share in [0, 1), found 1.0"),
        ("p", "data.jsonl", "--keep best", "unknown rule 'best'"),
        ("p", "data.jsonl", "--set test=0", "'test' is a setting of the data"),
        ("p", "data.jsonl", "--out plain", "exists already; pass --overwrite"),
    ],
)
def test_bad_input_is_refused(refused: Any, world: Path, policy: str, data: str, more: str, said: str) -> None:
    out = [] if "--out" in more else ["--out", world / "new"]
    more = more.replace("plain", str(world / "plain"))
    assert said in refused("improve", world / policy, "--data", world / data, *out, *more.split(), folder=world)


@pytest.mark.parametrize("option", ["-n 3", "--rounds 0", "--patience 0", "--validation-prompts 0"])
def test_numbers_out_of_range_are_usage_errors(refused: Any, world: Path, option: str) -> None:
    call = ("improve", world / "p", "--data", world / "data.jsonl", "--out", world / "new", *option.split())
    refused(*call, folder=world, usage=True)


def test_a_killed_command_goes_on(invoke: Any, world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL while samples are written; the same command then ends as if nothing had been."""
    monkeypatch.chdir(world)
    place = dict(os.environ, HF_HUB_OFFLINE="1", PYTHONPATH=str(Path(__file__).parent.parent))

    def call(name: str) -> list[str]:
        return ["improve", "p", "--data", "data.jsonl", "--out", name, *FAST.split(), "--json"]

    command = [sys.executable, "-m", "paretune", *call("broken")]
    broken = subprocess.Popen(command, env=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    sampled = world / ".broken.improve" / "round-1"
    deadline = time.monotonic() + 200
    while not any(sampled.glob("*samples.jsonl*")) and time.monotonic() < deadline and broken.poll() is None:
        time.sleep(0.01)
    broken.send_signal(signal.SIGKILL)
    broken.communicate()
    assert broken.returncode == -signal.SIGKILL and not Path("broken").exists()
    outcomes = {}
    for name in ("broken", "whole"):
        done = invoke(*call(name))
        assert done.exit_code == 0, done.output
        assert ("continuing the rounds in .broken.improve" in done.stderr) == (name == "broken")
        assert "Round 1 was" in done.stderr
        outcomes[name] = json.loads(done.stdout)
        assert outcomes[name].pop("folder").endswith(name) and outcomes[name].pop("seconds") > 0
        outcomes[name]["rounds"][0]["training"].pop("seconds")
    assert outcomes["broken"] == outcomes["whole"]
    for file in ("adapter/adapter_model.safetensors", "head.safetensors", "policy.json", "rounds/round-1.jsonl.gz"):
        assert Path("broken", file).read_bytes() == Path("whole", file).read_bytes(), file
    assert not [each.name for each in world.iterdir() if each.name.startswith(".")]
