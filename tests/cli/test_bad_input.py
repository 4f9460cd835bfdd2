"""Every way of bad input that users were promised one clear message for: exit 2, no traceback, nothing written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

GOOD = {"prompt": "Hi", "completions": [{"text": "a b", "scores": {"joy": 0.1}}, {"text": "c", "scores": {"joy": 0.9}}]}


def completion(**changes: Any) -> dict[str, Any]:
    """The good row with its second completion changed."""
    return {"prompt": "Ho", "completions": [GOOD["completions"][0], {"text": "c", "scores": {"joy": 0.5}} | changes]}


BAD_ROWS = {
    "broken JSON": ('{"prompt": ', "line 2: the line is not JSON"),
    "no object": ("[1, 2]", "line 2: a row must be a JSON object"),
    "no prompt": ({"completions": ["a"]}, "line 2, field 'prompt': there is no prompt"),
    "empty prompt": ({"prompt": " "}, "line 2, field 'prompt': the prompt is empty"),
    "prompt is no text": ({"prompt": 3}, "line 2, field 'prompt'"),
    "completion is no text": (completion(text=7), "line 2, field 'completions[1].text'"),
    "score is text": (completion(scores={"joy": "high"}), "line 2, field 'completions[1].scores.joy'"),
    "score is NaN": (
        '{"prompt": "x", "completions": [{"text": "a", "scores": {"joy": NaN}}]}',
        "line 2, field 'completions[0].scores.joy'",
    ),
    "score is infinite": (
        '{"prompt": "x", "completions": [{"text": "a", "scores": {"joy": Infinity}}]}',
        "line 2, field 'completions[0].scores.joy'",
    ),
    "not UTF-8": ("\udcff", "line 2: the line is not UTF-8"),
}


def verbs_on(rows: Path, folder: Path, model: Path) -> dict[str, list[object]]:
    """The verbs that read rows, on a file of rows."""
    out = folder / "out"
    return {
        "sample": ["sample", rows, "--model", model, "--out", out.with_suffix(".jsonl")],
        "score": ["score", rows, "--objective", "b=lexical:brevity", "--out", out.with_suffix(".jsonl")],
        "train": ["train", "sga", "--data", rows, "--model", model, "--out", out],
    }


VERBS = ["sample", "score", "train"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_is_named(refused: Any, tmp_path: Path, tiny_qwen: Path, verb: str, kind: str) -> None:
    bad, message = BAD_ROWS[kind]
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps(GOOD), bad if isinstance(bad, str) else json.dumps(bad)]
    rows.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    told = refused(*verbs_on(rows, tmp_path, tiny_qwen)[verb], folder=tmp_path)
    assert str(rows) in told and message in told


@pytest.mark.parametrize("verb", VERBS)
def test_a_missing_and_an_empty_file(refused: Any, tmp_path: Path, tiny_qwen: Path, verb: str) -> None:
    missing, empty = tmp_path / "missing.jsonl", tmp_path / "empty.jsonl"
    empty.touch()
    told = refused(*verbs_on(missing, tmp_path, tiny_qwen)[verb], folder=tmp_path)
    assert "missing.jsonl: no such file" in told
    assert "empty.jsonl: is empty" in refused(*verbs_on(empty, tmp_path, tiny_qwen)[verb], folder=tmp_path)


@pytest.mark.parametrize("verb", ["sample", "score"])
def test_an_output_that_exists_is_not_replaced_unasked(
    refused: Any, write_rows_file: Any, tmp_path: Path, tiny_qwen: Path, verb: str
) -> None:
    rows = write_rows_file(GOOD)
    (tmp_path / "out.jsonl").write_text("precious")
    told = refused(*verbs_on(rows, tmp_path, tiny_qwen)[verb], folder=tmp_path)
    assert "out.jsonl: exists already; pass --overwrite" in told


def test_a_folder_that_is_not_ours_is_never_replaced(
    refused: Any, scored_rows: Path, tmp_path: Path, tiny_qwen: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    for flags in ([], ["--overwrite"]):
        told = refused(*verbs_on(scored_rows, tmp_path, tiny_qwen)["train"], *flags, folder=tmp_path)
        assert "was not written by paretune" in told


def test_nothing_to_score(refused: Any, write_rows_file: Any, tmp_path: Path, tiny_qwen: Path) -> None:
    rows = write_rows_file({"prompt": "Hi"})
    assert "no row has a completion" in refused(*verbs_on(rows, tmp_path, tiny_qwen)["score"], folder=tmp_path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("brevity", "NAME=SPEC"),
        ("b=lexical:brevty", "Did you mean 'brevity'"),
        ("b=lexcal:brevity", "Did you mean 'lexical'"),
        ("1b=lexical:brevity", "objective name '1b'"),
        ("b=column:jay", "no row has a score or column 'jay'. Did you mean 'joy'"),
        ("b=python:no_such_module_here:f", "no_such_module_here"),
    ],
)
def test_an_objective_that_cannot_be(
    refused: Any, write_rows_file: Any, tmp_path: Path, spec: str, message: str
) -> None:
    rows = write_rows_file(GOOD)
    assert message in refused("score", rows, "--objective", spec, "--out", tmp_path / "o.jsonl", folder=tmp_path)


def test_a_method_that_is_not_there(refused: Any, scored_rows: Path, tmp_path: Path, tiny_qwen: Path) -> None:
    arguments = ["--data", scored_rows, "--model", tiny_qwen, "--out", tmp_path / "out"]
    told = refused("train", "sgaa", *arguments, folder=tmp_path)
    assert "unknown method 'sgaa'. Did you mean 'sga'" in told


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "epoch=1"], "Did you mean 'epochs'"),
        (["--set", "epochs=many"], "epochs"),
        (["--set", "epochs"], "epochs"),
        (["--set", "lr=-1"], "lr"),
        (["--config", "missing.yaml"], "missing.yaml: no such config file"),
        (["--objective", "cheerr"], "Did you mean 'cheer'"),
    ],
)
def test_settings_that_cannot_be(
    refused: Any, scored_rows: Path, tmp_path: Path, tiny_qwen: Path, arguments: list[str], message: str
) -> None:
    told = refused(*verbs_on(scored_rows, tmp_path, tiny_qwen)["train"], *arguments, folder=tmp_path)
    assert message in told


@pytest.mark.parametrize(
    ("text", "message"), [("epoch: 1\n", "Did you mean 'epochs'"), ("- 1\n", "c.yaml"), ("a: [\n", "c.yaml")]
)
def test_config_files_that_cannot_be(
    refused: Any, scored_rows: Path, tmp_path: Path, tiny_qwen: Path, text: str, message: str
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    config = ["--config", tmp_path / "c.yaml"]
    told = refused(*verbs_on(scored_rows, tmp_path, tiny_qwen)["train"], *config, folder=tmp_path)
    assert message in told and "c.yaml" in told


def _rows(count: int, scores: Any) -> list[dict[str, Any]]:
    return [
        {"prompt": f"Say {at}", "completions": [{"text": text, "scores": scores(at, text)} for text in ("a", "b c")]}
        for at in range(count)
    ]


def test_an_objective_without_a_scale(refused: Any, write_rows_file: Any, tmp_path: Path, tiny_qwen: Path) -> None:
    rows = write_rows_file(*_rows(12, lambda at, text: {"joy": 0.5, "size": at + len(text)}))
    told = refused(*verbs_on(rows, tmp_path, tiny_qwen)["train"], folder=tmp_path)
    assert "scores of objective 'joy' equal 0.5, so no scale can be fitted" in told


def test_an_objective_in_no_row(refused: Any, write_rows_file: Any, tmp_path: Path, tiny_qwen: Path) -> None:
    from paretune.data import store_objectives
    from paretune.profile import Objective

    rows = write_rows_file(*_rows(12, lambda at, text: {"joy": at + len(text)}))
    store_objectives(rows, [Objective("joy"), Objective("size")])
    told = refused(*verbs_on(rows, tmp_path, tiny_qwen)["train"], folder=tmp_path)
    assert "'size'" in told and "joy" in told


@pytest.mark.parametrize("content", [None, {}, {"config.json": "{}"}, {"config.json": '{"model_type": "bert"}'}])
def test_a_model_that_is_no_model(
    refused: Any, scored_rows: Path, tmp_path: Path, content: dict[str, str] | None
) -> None:
    folder = tmp_path / "model"
    if content is not None:
        folder.mkdir()
    for name, text in (content or {}).items():
        (folder / name).write_text(text)
    told = refused(*verbs_on(scored_rows, tmp_path, folder)["train"], folder=tmp_path)
    assert str(folder) in told


def test_a_prompt_longer_than_the_context_is_an_error_when_strict(
    refused: Any, write_rows_file: Any, tmp_path: Path, tiny_gpt2: Path
) -> None:
    rows = _rows(12, lambda at, text: {"joy": at + len(text)})
    rows[3]["prompt"] = "word " * 600
    file = write_rows_file(*rows)
    train = verbs_on(file, tmp_path, tiny_gpt2)["train"]
    told = refused(*train, "--strict", folder=tmp_path)
    assert "row-4" in told and "does not fit" in told


@pytest.mark.parametrize("verb", ["sense", "generate", "evaluate"])
def test_a_policy_that_is_no_policy(
    refused: Any, tiny_qwen: Path, scored_rows: Path, tmp_path: Path, verb: str
) -> None:
    tail = ["--data", scored_rows, "--out", tmp_path / "o"] if verb == "evaluate" else ["--prompt", "Hi"]
    for folder in (tiny_qwen, tmp_path / "missing"):
        assert str(folder) in refused(verb, folder, *tail, folder=tmp_path)


@pytest.mark.parametrize(
    ("verb", "options", "message"),
    [
        ("sense", ["--pin", "brevty=0.5"], "Did you mean 'brevity'"),
        ("sense", ["--pin", "brevity=2"], "must lie in [0, 1]"),
        ("sense", ["--prompt", "a\udcff"], "--prompt: a text must not hold a lone surrogate"),
        ("generate", ["--pin", "brevty=0.5"], "Did you mean 'brevity'"),
        ("generate", ["--condition", "oness"], "Did you mean 'ones'"),
        ("generate", ["--top-p", "0"], "top_p must lie in (0, 1]"),
        ("generate", ["--prompt", " "], "--prompt: the prompt is empty"),
    ],
)
def test_what_is_cheap_to_tell_is_told_before_the_model_is_loaded(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, options: list[str], message: str
) -> None:
    described = {"format": 1, "method": "sga", "base_model": "gone", "renderer": {}, "adapter": False, "head": {}}
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "policy.json").write_text(json.dumps(described | {"objectives": [{"name": "brevity"}]}))
    prompt = [] if "--prompt" in options else ["--prompt", "Hi"]
    monkeypatch.setattr("paretune.policy.load_policy", lambda *_, **__: pytest.fail("the model was loaded"))
    assert message in refused(verb, policy, *prompt, *options, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "points.csv: holds no point"),
        ("quality,seconds\n", "points.csv"),
        ("quality\n1\n", "line 2, field 'seconds': no such column"),
        ("quality,seconds\n1,2\n1,nan\n", "line 3, field 'seconds'"),
        ("quality,seconds\n1,2\n1\n", "line 3"),
        ("quality,seconds\n1,2\n1,fast\n", "line 3, field 'seconds': a number is needed, found 'fast'"),
    ],
)
def test_a_table_that_is_none(refused: Any, tmp_path: Path, text: str, message: str) -> None:
    points = tmp_path / "points.csv"
    points.write_text(text)
    asked = ["front", points, "--maximise", "quality", "--minimise", "seconds", "--plot", tmp_path / "f.png"]
    assert message in refused(*asked, folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no objective"),
        (["--maximise", "qualty"], "Did you mean 'quality'"),
        (["--maximise", "quality", "--minimise", "quality"], "quality"),
        (["--maximise", "quality", "--reference", "0,1"], "reference"),
        (["--maximise", "quality", "--reference", "nan"], "reference"),
        (["--maximise", "quality", "--reference", "speed=1"], "speed"),
        (["--maximise", "quality", "--reference", "9"], "no point is better than the reference"),
    ],
)
def test_a_front_that_cannot_be(refused: Any, tmp_path: Path, arguments: list[str], message: str) -> None:
    points = tmp_path / "points.csv"
    points.write_text("quality,seconds\n1,2\n2,3\n")
    assert message in refused("front", points, *arguments, folder=tmp_path)


def test_bad_rows_are_skipped_when_asked(invoke: Any, write_rows_file: Any, tmp_path: Path) -> None:
    rows = write_rows_file(GOOD, "{", {"completions": []})
    out = tmp_path / "o.jsonl"
    done = invoke("score", rows, "--objective", "b=lexical:brevity", "--out", out, "--skip-bad-rows", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["bad_rows"] == 2
    assert len(out.read_text().splitlines()) == 1
