"""`paretune score` with a judge, as a user runs it, against an endpoint on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paretune.rewards.judge.cache import FILE
from rewards.judge_server import JudgeServer, error, verdict


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    data = [
        {"id": "a", "prompt": "What is tea?", "completions": [{"text": "A drink."}, {"text": "A leaf, steeped."}]},
        {"id": "b", "prompt": "What is rain?", "completions": [{"text": "Water."}]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in data))
    return path


def score(rows: Path, url: str, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    objective = f"h=judge:m@{url}?rubric=helpfulness"
    environment = os.environ | {
        "PARETUNE_CACHE": str(rows.parent / "cache"),
        "PARETUNE_JUDGE_API_KEY": "sk-secret",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", "paretune", "score", str(rows), "--objective", objective, "--out", str(out), *more],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )


def test_score_by_a_judge(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "scored.jsonl"
    with JudgeServer(lambda asked: verdict(len(asked.answer) // 2, f"about {asked.answer}")) as server:
        done = score(rows, server.url, out)
        assert (done.returncode, done.stderr) == (0, "")
        first = out.read_text()
        found = [item["scores"]["h"] for line in first.splitlines() for item in json.loads(line)["completions"]]
        assert found == [4.0, 8.0, 3.0]
        assert len(server.asked) == 3
        done = score(rows, server.url, out, "--overwrite", "--json")
        assert done.returncode == 0, done.stderr
        assert out.read_text() == first and len(server.asked) == 3, "a second run asks nothing"
        assert (tmp_path / "cache" / "judge" / FILE).is_file()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if b"sk-secret" in path.read_bytes()]


def test_a_key_that_is_refused(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "scored.jsonl"
    with JudgeServer(lambda asked: error(401, "bad key sk-secret")) as server:
        done = score(rows, server.url, out)
    assert (done.returncode, done.stdout) == (2, "")
    assert "PARETUNE_JUDGE_API_KEY" in done.stderr and "sk-secret" not in done.stderr
    assert "Traceback" not in done.stderr and not out.exists()
