"""Runs of every verb killed (SIGKILL) at places all along the way, file by file and step by step: they lose nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from improving import make_policy, write_data
from killing import __file__ as PROGRAM
from killing import same
from tiny_rewards import rows_of

SHARED = ("dtype=float32", "epochs=2", "batch_size=5", "lora_r=4", "lora_dropout=0.3", "save_every=2", "keep=2")
SENSING = ("head.width=16", "head.skip=false", "head_epochs=2", "head_warmup=2", "sensed_share=1", "jitter=0.5")
SETTINGS = {
    "sga": (*SHARED, *SENSING, "weight_dpo=1"),
    "dpo": SHARED,
    "ric": SHARED,
    "reward": (*SHARED, "bootstrap=20"),
    "improve": ("epochs=1", "save_every=1"),
    "sample": (),
}
EVERY = {"sample": 3}
"""Which of the places kill; every ninth where nothing is said."""


@pytest.mark.slow
@pytest.mark.parametrize("verb", SETTINGS)
def test_a_run_killed_anywhere_ends_as_the_one_that_was_not(
    verb: str, tiny_llama: Path, scored_rows: Path, tmp_path: Path
) -> None:
    data, model = scored_rows, tiny_llama
    if verb == "reward":
        data = tmp_path / "reward.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows_of()))
    if verb == "improve":
        data = write_data(tmp_path / "data.jsonl")
        model = make_policy(data, tiny_llama, tmp_path / "policy")
    output = "samples.jsonl" if verb == "sample" else "policy"
    command = [
        sys.executable,
        PROGRAM,
        verb,
        str(data),
        str(model),
        str(tmp_path / "runs"),
        str(EVERY.get(verb, 9)),
        output,
    ]
    done = subprocess.run(
        [*command, *SETTINGS[verb]],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(PROGRAM).parent)},
        capture_output=True,
        text=True,
        timeout=1500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["killed"]) >= 2 and told["done"], told
    for each in told["done"]:
        same(tmp_path / "runs" / each["name"], tmp_path / "runs" / "plain")
        if each["name"].startswith(("done", "last")):  # nothing half-written stays beside it
            assert [name for name in each["left"] if not name.endswith(".objectives.json")] == [], each
