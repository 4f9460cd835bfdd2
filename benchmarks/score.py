"""What `paretune score` costs with rewards that cost next to nothing: rows a second, and memory by number of rows.

    python benchmarks/score.py [--rows 1000 10000 100000] [--workers 2] [--json]

Rows of two answers of forty random words each are made, seeded, and scored by the command line in a process of its own:
two lexical rewards and a Python one. The last size is scored again by several worker processes. Memory is the highest
resident set of the largest process; it should hardly grow with the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

REWARD = """
def spread(prompts, completions, **columns):
    return [len(set(text.split())) / max(1, len(text.split())) for text in completions]
"""
OBJECTIVES = ("brevity=lexical:brevity", "question=lexical:question", "spread=python:benchmark_reward:spread")
ANSWERS, WORDS = 2, 40


def make_rows(path: Path, count: int, seed: int = 0) -> None:
    """Write `count` rows of random words, an eighth of the sentences of which are questions."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(5000)]

    def answer() -> dict[str, Any]:
        said = chance.choices(words, k=WORDS)
        for at in range(9, WORDS, 10):
            said[at] += chance.choice(".......?")
        return {"text": " ".join(said), "model": "random"}

    with path.open("w", encoding="utf-8") as file:
        for at in range(count):
            prompt = " ".join(chance.choices(words, k=12))
            row = {"id": f"row {at}", "prompt": prompt, "completions": [answer() for _ in range(ANSWERS)]}
            file.write(json.dumps(row) + "\n")


def measure(folder: Path, count: int, workers: int) -> dict[str, Any]:
    """Score a file of `count` rows; seconds, rows a second and MiB of the largest process."""
    command = [
        sys.executable,
        "-m",
        "paretune",
        "score",
        f"{count}.jsonl",
        "--out",
        "out.jsonl",
        "--overwrite",
        "--json",
    ]
    command += [part for objective in OBJECTIVES for part in ("--objective", objective)]
    start = time.monotonic()
    with (folder / "summary.json").open("wb") as summary:
        process = subprocess.Popen([*command, "--workers", str(workers)], cwd=folder, stdout=summary)
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the command ended with {process.returncode}")
    found = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert found["completions"] == count * ANSWERS
    return {
        "rows": count,
        "workers": workers,
        "seconds": round(seconds, 2),
        "rows_per_second": round(count / seconds),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "mib": round(usage.ru_maxrss / (1 << 10 if sys.platform != "darwin" else 1 << 20)),
        "file_mib": round((folder / f"{count}.jsonl").stat().st_size / (1 << 20), 1),
    }


def run(sizes: list[int], workers: int) -> dict[str, Any]:
    """All measurements, and how much faster several processes are."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "benchmark_reward.py").write_text(REWARD)
        for size in sizes:
            make_rows(folder / f"{size}.jsonl", size)
        runs = [measure(folder, size, 1) for size in sizes]
        runs.append(measure(folder, sizes[-1], workers))
    return {"runs": runs, "speedup": round(runs[-2]["seconds"] / runs[-1]["seconds"], 2), "cores": os.cpu_count()}


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description="What `paretune score` costs beyond its rewards.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = run(arguments.rows, arguments.workers)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{'rows':>9} {'workers':>7} {'seconds':>8} {'rows/s':>8} {'CPU s':>7} {'MiB':>5} {'file MiB':>8}")
    for each in found["runs"]:
        print(
            f"{each['rows']:>9,} {each['workers']:>7} {each['seconds']:>8} {each['rows_per_second']:>8,} "
            f"{each['cpu_seconds']:>7} {each['mib']:>5} {each['file_mib']:>8}"
        )
    print(f"{arguments.workers} workers are {found['speedup']} times as fast as one process on {found['cores']} cores")


if __name__ == "__main__":
    main()
