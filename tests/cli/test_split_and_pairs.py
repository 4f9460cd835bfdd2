"""`paretune data split` and `paretune data pairs`, and the way back of what they write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paretune.data import read_rows, split_rows, store_objectives, stored_objectives
from paretune.profile import Objective

SUBJECTS = ["tea", "rain", "bees", "chess", "bread", "stars", "rivers", "clocks", "maps", "drums", "snow", "owls"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    """Forty-eight prompts, every fourth one a near-duplicate of the one before; four completions each."""
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        for at in range(48):
            subject = SUBJECTS[(at - (at % 4 == 3)) % 12]
            twin = at - (at % 4 == 3)
            prompt = (
                f"Why do we all know so little about {subject} and {chr(97 + twin % 26) * 9} {twin * 7919}"
                + "?" * (at % 4 == 3)
            )
            scores = [{"joy": ((at + 1) * (k + 3)) % 7, "cost": (at + 5 * k) % 9} for k in range(4)]
            completions = [{"text": f"answer {k}", "scores": own} for k, own in enumerate(scores)]
            file.write(json.dumps({"id": f"q{at}", "prompt": prompt, "completions": completions, "from": "me"}) + "\n")
    store_objectives(path, [Objective("joy"), Objective("cost", direction="minimise")])
    return path


def test_split_writes_the_parts_whole(invoke: Callable[..., Any], rows_file: Path, tmp_path: Path) -> None:
    done = invoke(
        "data", "split", rows_file, "--out", tmp_path / "parts", "--validation", 0.2, "--test", 0.25, "--seed", 3
    )
    assert done.exit_code == 0, done.output
    expected = split_rows(read_rows(rows_file), seed=3, validation=0.2, test=0.25)
    for name in ("train", "validation", "test"):
        path = tmp_path / "parts" / f"{name}.jsonl"
        assert read_rows(path) == getattr(expected, name)
        assert stored_objectives(path) == stored_objectives(rows_file)
        assert f"{name}.jsonl" in done.stdout
    assert "12 prompts went with a near-duplicate" in done.stdout
    as_json = invoke(
        "data", "split", rows_file, "--out", tmp_path / "parts", "--near", 0, "--test", 0, "--overwrite", "--json"
    )
    found = json.loads(as_json.stdout)
    assert found["joined"] == 0 and sum(found["rows"].values()) == 48 and set(found["rows"]) == {"train", "validation"}
    assert not (tmp_path / "parts" / "test.jsonl").exists()


def test_split_refuses_what_it_cannot_do(refused: Callable[..., str], rows_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "parts"
    assert "shares in [0, 1)" in refused("data", "split", rows_file, "--out", out, "--test", 1.5, folder=tmp_path)
    assert "near_duplicates must lie" in refused("data", "split", rows_file, "--out", out, "--near", 3, folder=tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    assert "not written by paretune" in refused(
        "data", "split", rows_file, "--out", tmp_path / "mine", "--overwrite", folder=tmp_path
    )


def test_pairs_are_trl_preference_rows(invoke: Callable[..., Any], rows_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "pairs.jsonl"
    done = invoke("data", "pairs", rows_file, "--out", out, "--scale", "minmax")
    assert done.exit_code == 0, done.output
    first = lines(out)[0]
    # row q0: joy 3 4 5 6 of 0-6, cost 0 5 1 6 of 0-8 and less is better: means .75, .521, .854, .625
    assert first["id"] == "q0" and first["prompt"] == [{"role": "user", "content": read_rows(rows_file)[0].text}]
    assert first["chosen"] == [{"role": "assistant", "content": "answer 2"}]
    assert first["rejected"] == [{"role": "assistant", "content": "answer 1"}]
    assert (first["chosen_scores"], first["rejected_scores"]) == ({"joy": 5, "cost": 1}, {"joy": 4, "cost": 5})
    assert first["gap"] == pytest.approx((5 / 6 + 7 / 8) / 2 - (4 / 6 + 3 / 8) / 2)
    back = read_rows(out)  # as preference rows, with labels
    assert [each.label for each in back[0].completions] == ["chosen", "rejected"]
    assert f"{out}: {len(back)} pairs of 48 rows" in done.stdout


def test_every_option_of_pairs_changes_them(invoke: Callable[..., Any], rows_file: Path, tmp_path: Path) -> None:
    def pairs(*options: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        out = tmp_path / "pairs.jsonl"
        done = invoke("data", "pairs", rows_file, "--out", out, "--overwrite", "--json", *options)
        assert done.exit_code == 0, done.output
        return lines(out), json.loads(done.stdout)

    plain, told = pairs()
    assert told["built"] == {"by_mean": len(plain)} and told["pairs"] == len(plain)
    weighted, told = pairs("--rule", "weights", "--weights", "joy=1,cost=3")
    assert told["built"] == {"by_weights": len(weighted)} and weighted != plain
    pareto, told = pairs("--rule", "pareto")
    assert told["dropped"]["not_dominated"] == 48 - len(pareto) > 0
    assert pairs("--rule", "best-random")[0] != pairs("--rule", "best-random", "--seed", 1)[0]
    wide, told = pairs("--margin", 0.4)
    assert told["dropped"]["below_margin"] > 0 and min(each["gap"] for each in wide) >= 0.4
    two, _ = pairs("--per-prompt", 2)
    assert len(two) > len(plain) and two[1]["id"] == f"{two[0]['id']}#2" and read_rows(tmp_path / "pairs.jsonl")
    assert [each["gap"] for each in pairs("--scale", "zscore")[0]] != [each["gap"] for each in plain]
    assert set(pairs("--objective", "joy")[0][0]["chosen_scores"]) == {"joy"}


def test_labels_can_be_ignored(
    invoke: Callable[..., Any], write_rows_file: Callable[..., Path], tmp_path: Path
) -> None:
    labelled = [
        {"text": "good", "scores": {"joy": at}, "label": "rejected"} if at else {"text": "bad", "label": "chosen"}
        for at in (0, 1)
    ]
    labelled[0]["scores"] = {"joy": 0}
    path = write_rows_file({"prompt": "Why?", "completions": labelled}, name="labelled.jsonl")
    out = tmp_path / "pairs.jsonl"
    assert invoke("data", "pairs", path, "--out", out).exit_code == 0
    (line,) = lines(out)
    assert line["chosen"][0]["content"] == "bad" and line["gap"] is None
    assert invoke("data", "pairs", path, "--out", out, "--ignore-labels", "--overwrite").exit_code == 0
    assert lines(out)[0]["chosen"][0]["content"] == "good"


def test_wanted_profiles_can_be_ignored(
    invoke: Callable[..., Any], write_rows_file: Callable[..., Path], tmp_path: Path
) -> None:
    completions = [{"text": str(at), "scores": {"joy": at}} for at in range(3)]
    path = write_rows_file({"prompt": "Why?", "completions": completions, "wanted": {"joy": 0.0}}, name="wanted.jsonl")
    asked = ["data", "pairs", path, "--out", tmp_path / "pairs.jsonl", "--overwrite"]
    done = invoke(*asked)
    assert "(1 by wanted; dropped: " in done.stdout
    assert lines(tmp_path / "pairs.jsonl")[0]["chosen"][0]["content"] == "0"
    assert "(1 by mean; " in invoke(*asked, "--ignore-wanted").stdout
    assert lines(tmp_path / "pairs.jsonl")[0]["chosen"][0]["content"] == "2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rule", "median"], "unknown rule of pairs 'median'"),
        (["--rule", "weights"], "needs a weight"),
        (["--rule", "weights", "--weights", "joy"], "weights are written a=2,b=1, found 'joy'"),
        (["--rule", "weights", "--weights", "joy=1,joy=2"], "sets 'joy' twice"),
        (["--rule", "weights", "--weights", "jo=1"], "Did you mean 'joy'?"),
        (["--objective", "jo"], "no row has a score for objective 'jo'. Did you mean 'joy'?"),
        (["--scale", "log"], "unknown scale 'log'"),
        (["--margin", "2"], "gives no pair: 0 pairs of 48 rows"),
    ],
)
def test_bad_options_of_pairs(
    refused: Callable[..., str], rows_file: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    assert message in refused("data", "pairs", rows_file, "--out", tmp_path / "p.jsonl", *options, folder=tmp_path)


def test_pairs_are_no_parquet(refused: Callable[..., str], rows_file: Path, tmp_path: Path) -> None:
    assert "ends in .jsonl" in refused("data", "pairs", rows_file, "--out", tmp_path / "p.parquet", folder=tmp_path)


def test_in_a_process_of_its_own(paretune: Callable[..., Any], rows_file: Path, tmp_path: Path) -> None:
    done = paretune("data", "split", rows_file, "--out", tmp_path / "parts")
    assert done.returncode == 0 and (tmp_path / "parts" / "test.jsonl").exists(), done.stderr
    done = paretune(
        "data", "pairs", tmp_path / "parts" / "train.jsonl", "--rule", "pareto", "--out", tmp_path / "p.jsonl"
    )
    assert done.returncode == 0 and "where no completion dominates another" in done.stdout, done.stderr
