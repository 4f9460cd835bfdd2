"""benchmarks/score.py runs, on rows that are the same each time."""

from __future__ import annotations


def test_it_measures_every_size_and_several_workers(tmp_path, benchmark):
    score = benchmark("score")
    for name in ("a.jsonl", "b.jsonl"):
        score.make_rows(tmp_path / name, 5)
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    found = score.run([20, 40], 2)
    assert [(each["rows"], each["workers"]) for each in found["runs"]] == [(20, 1), (40, 1), (40, 2)]
    assert all(each["rows_per_second"] > 0 and each["mib"] > 0 for each in found["runs"])
