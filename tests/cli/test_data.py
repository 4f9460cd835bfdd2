"""`paretune data`: convert, inspect and formats as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import published_data as published
from paretune.data import ReadReport, read_rows
from tiny_models import tiny_tokenizer


def test_convert_says_what_it_read_and_wrote(invoke: Any, write_rows_file: Any, tmp_path: Path) -> None:
    source = write_rows_file(*published.HELPSTEER, "{")
    out = tmp_path / "out.jsonl.gz"
    done = invoke("data", "convert", source, "--out", out, "--skip-bad-rows")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"{out}: 6 records read (helpsteer), 2 rows written",
        "5 completions, scored for helpfulness, correctness, coherence, complexity, verbosity",
        "dropped 1 bad rows: the line is not JSON (one object a line is needed)",
    ]
    assert len(read_rows(out)) == 2


def test_convert_in_json_and_its_options(invoke: Any, tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("q,a,s\nWhy?,x,1\nHow?,y,2\nWho?,z,3\n")
    out = tmp_path / "out.parquet"
    mapped = ["--map", "prompt=q", "--map", "completion = a", "--map", "scores.fun=s"]
    done = invoke("data", "convert", source, "--out", out, *mapped, "--limit", 2, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "out": str(out),
        "records": 3,
        "rows": 2,
        "completions": 2,
        "formats": {"table": 3},
        "dropped": {},
        "scores": ["fun"],
    }
    drawn = []
    for seed in range(8):
        assert (
            invoke(
                "data", "convert", source, "--out", out, *mapped, "--limit", 1, "--seed", seed, "--overwrite"
            ).exit_code
            == 0
        )
        drawn += [row.text for row in read_rows(out)]
    assert len(set(drawn)) > 1


def test_convert_several_files(invoke: Any, tmp_path: Path) -> None:
    for name, records in {"a": published.ALPACA_EVAL, "b": published.ALPACA_EVAL_OTHER}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(records))
    done = invoke("data", "convert", tmp_path / "a.json", tmp_path / "b.json", "--out", tmp_path / "rows.jsonl")
    assert "4 records read (alpaca-eval), 2 rows written" in done.stdout


def test_bad_input_is_one_message(refused: Any, write_rows_file: Any, tmp_path: Path) -> None:
    odd = write_rows_file({"question": "a", "reply": "b"}, name="odd.jsonl")
    tail = ["--out", tmp_path / "rows.jsonl"]
    message = refused("data", "convert", odd, *tail, folder=tmp_path)
    assert "no format fits the columns question, reply. Say which is what" in message
    assert "--map prompt=COLUMN" in message and "Formats: rows (prompt, completions);" in message
    assert "written TO=COLUMN" in refused("data", "convert", odd, *tail, "--map", "prompt", folder=tmp_path)
    twice = ["--map", "prompt=a", "--map", "prompt=b"]
    assert "sets 'prompt' twice" in refused("data", "convert", odd, *tail, *twice, folder=tmp_path)
    message = refused("data", "convert", odd, *tail, "--map", "prompt=questoin", folder=tmp_path)
    assert "has no column 'questoin'. Did you mean 'question'?" in message
    assert "Did you mean 'helpsteer'" in refused("data", "convert", odd, *tail, "--format", "helpster", folder=tmp_path)
    assert "no format fits" in refused("data", "inspect", odd, folder=tmp_path)
    assert "--near" in refused("data", "inspect", odd, "--near", "2", folder=tmp_path, usage=True)
    assert "No such command 'convrt'" in refused("data", "convrt", folder=tmp_path, usage=True)


def test_inspect_for_people(invoke: Any, write_rows_file: Any) -> None:
    long = "How do I bake a good loaf of bread at home without any yeast in the house"
    train = write_rows_file(
        {
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": long}],
            "completions": ["x", "x", ""],
        },
        {"prompt": long + "?", "chosen": "a", "rejected": "b", "topic": "bread"},
        {"prompt": "Hi", "completions": [{"text": "x", "scores": {"fun": 2}}], "wanted": {"fun": 1}},
        {"prompt": "Hi", "completions": ["p", "q"], "preferences": {"fun": [0, 1]}},
        {"prompt": ""},
        name="train.jsonl",
    )
    test = write_rows_file({"prompt": "Hi"}, {"prompt": long + "!"}, name="test.jsonl")
    done = invoke("data", "inspect", train, test)
    assert done.exit_code == 0, done.output
    for line in (
        "train.jsonl: rows 5",
        "4 rows, 3 prompts, 8 completions",
        "1 bad rows",
        "    1: the prompt is empty",
        "1 rows with a system prompt, 1 different ones",
        "completions a prompt    2  2.100",
        "fun    1        7  2.000  2.000  2.000",
        "labels: chosen 1, rejected 1",
        "preferences: fun 1",
        "wanted: fun 1",
        "other columns, kept: topic",
        "1 empty completions",
        "1 rows whose prompt an earlier row has",
        "1 completions that their prompt has twice",
        "1 completions that another prompt has too",
        "2 prompts in 1 groups of near-duplicates, such as",
        "shares with",
        ": 1 prompts",
        "and 1 that are nearly the same",
    ):
        assert line in done.stdout, (line, done.stdout)


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    tiny_tokenizer("llama").save_pretrained(str(tmp_path / "tokenizer"))
    return tmp_path / "tokenizer"


def test_inspect_in_json(invoke: Any, tmp_path: Path, tokenizer_folder: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("prompt,response,helpfulness,correctness,coherence\na,b,1,2,3\na,c,2,,3\n")
    done = invoke("data", "inspect", source, "--json", "--near", 0)
    (file,) = json.loads(done.stdout)["files"]
    assert file["formats"] == {"helpsteer": 2} and file["near_groups"] is None
    assert file["scores"]["correctness"] == {"n": 1, "missing": 1, "mean": 2.0, "low": 2.0, "high": 2.0}
    mapped = ["--map", "prompt=prompt", "--map", "completion=response", "--model", tokenizer_folder]
    (file,) = json.loads(invoke("data", "inspect", source, "--json", *mapped).stdout)["files"]
    assert file["formats"] == {"table": 2} and file["length_unit"] == "tokens" and file["scores"] == {}
    (file,) = json.loads(invoke("data", "inspect", source, "--json", "--format", "prompts").stdout)["files"]
    assert file["completions"] == 0 and file["formats"] == {"prompts": 2}


def test_formats(invoke: Any) -> None:
    listed = json.loads(invoke("data", "formats", "--json").stdout)
    assert {"name", "about", "columns"} == set(listed[0])
    shown = invoke("data", "formats").stdout
    assert all(each["name"] in shown and each["columns"] in shown for each in listed)
    assert set(published.ALL) <= {each["name"] for each in listed}


@pytest.mark.parametrize("verb", ["inspect", "convert", "formats"])
def test_every_verb_explains_itself(invoke: Any, verb: str) -> None:
    assert "--json" in invoke("data", verb, "--help").stdout


def test_a_whole_run_in_a_process_of_its_own(paretune: Any, tmp_path: Path) -> None:
    (tmp_path / "pku.jsonl").write_text("".join(json.dumps(each) + "\n" for each in published.PKU))
    done = paretune("data", "convert", "pku.jsonl", "--out", "rows.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    done = paretune("data", "inspect", "rows.jsonl", "pku.jsonl", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "") and "preferences: better 1, safer 1" in done.stdout


def test_other_verbs_read_the_formats_too(invoke: Any, write_rows_file: Any, tmp_path: Path) -> None:
    source, out = write_rows_file(*published.ULTRAFEEDBACK), tmp_path / "scored.jsonl"
    done = invoke("score", source, "--objective", "brevity=lexical:brevity", "--out", out)
    assert done.exit_code == 0, done.output
    (row,) = read_rows(out)
    assert row.completions[0].scores["helpfulness"] == 5 and row.completions[0].scores["brevity"] is not None


def test_training_on_a_format_knows_its_directions(write_rows_file: Any) -> None:
    from paretune.methods.prepare import choose_objectives

    source, report = write_rows_file(*published.PKU), ReadReport()
    rows = read_rows(source, report=report)
    chosen = choose_objectives(source, rows, (), report.found.minimise)
    assert [(each.name, each.direction) for each in chosen] == [("safe", "maximise"), ("severity", "minimise")]
