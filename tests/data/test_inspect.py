"""`inspect`: every number against a count by hand."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import published_data as published
from paretune.data import inspect
from paretune.data.inspect import FileReport, Scores
from paretune.errors import InputError
from tiny_models import tiny_tokenizer


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join((each if isinstance(each, str) else json.dumps(each)) + "\n" for each in records))
    return path


def one(tmp_path: Path, records: list[Any], **options: Any) -> FileReport:
    (report,) = inspect(write(tmp_path / "rows.jsonl", records), **options).files
    return report


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    tiny_tokenizer("llama").save_pretrained(str(tmp_path / "tokenizer"))
    return tmp_path / "tokenizer"


SYSTEM = {"role": "system", "content": "Be kind."}
LONG = "How do I bake a good loaf of bread at home without any yeast in the house"
ROWS: list[Any] = [
    {
        "prompt": [SYSTEM, {"role": "user", "content": "one two three"}],
        "completions": [
            {"text": "a b", "scores": {"fun": 1, "calm": None}},
            {"text": "a b", "scores": {"fun": 3}},
            {"text": " ", "scores": {"calm": 0.5}},
        ],
        "wanted": {"fun": 0.5},
        "source": "here",
    },
    {"prompt": "one", "completions": ["a b", "c"], "preferences": {"fun": [[0, 1], [1, 0]], "calm": [0, 1]}},
    {"prompt": "one", "completions": ["d"]},
    {"prompt": LONG},
    {"prompt": LONG + " ?", "chosen": "x", "rejected": "y", "note": 1},
    {"prompt": "  "},
    "{",
    {"prompt": ""},
]


def test_everything_by_hand(tmp_path: Path) -> None:
    report = one(tmp_path, ROWS)
    assert (report.rows, report.bad, report.prompts, report.completions) == (5, 3, 4, 8)
    assert report.formats == {"rows": 8}
    assert report.bad_reasons == {"the prompt is empty": 2, "the line is not JSON (one object a line is needed)": 1}
    assert report.rows_without_completions == 1
    # by prompt: 3; 2 + 1; 0; 2
    spread = report.completions_per_prompt
    assert (spread["min"], spread["0.5"], spread["max"], spread["mean"]) == (0, 2.5, 3, 2)
    assert (report.turns["min"], report.turns["max"]) == (1, 1)
    assert (report.system_prompts, report.distinct_system_prompts) == (1, 1)
    assert report.length_unit == "words"
    assert (report.prompt_length["min"], report.prompt_length["max"]) == (1, 18)
    lengths = report.completion_length  # 2, 2, 0, 2, 1, 1, 1, 1
    assert (lengths["min"], lengths["0.5"], lengths["max"], lengths["mean"]) == (0, 1, 2, 1.25)
    assert report.scores == {"fun": Scores(2, 6, 2.0, 1.0, 3.0), "calm": Scores(1, 7, 0.5, 0.5, 0.5)}
    assert report.labels == {"chosen": 1, "rejected": 1}
    assert report.preferences == {"fun": 2, "calm": 1} and report.wanted == {"fun": 1}
    assert report.other_columns == ["source", "note"]
    assert report.empty_completions == 1
    assert (report.repeated_prompts, report.repeated_completions, report.common_answers) == (1, 1, 1)
    assert (report.near_groups, report.near_prompts, report.near_compared) == (1, 2, 4)
    assert report.near_examples[0][1].endswith("in the house ?")


def test_near_duplicates_are_as_near_as_asked(tmp_path: Path) -> None:
    assert one(tmp_path, ROWS, near=1).near_groups == 0
    off = one(tmp_path, ROWS, near=0)
    assert off.near_groups is None and off.near_compared == 0
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        one(tmp_path, ROWS, near=1.5)


def test_only_so_many_prompts_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("paretune.data.inspect"), "NEAR_LIMIT", 3)
    report = one(tmp_path, ROWS)
    assert (report.near_compared, report.near_groups, report.prompts) == (3, 0, 4)


def test_the_overlap_of_two_files(tmp_path: Path) -> None:
    train = write(tmp_path / "train.jsonl", [{"prompt": LONG}, {"prompt": "same"}, {"prompt": "other"}])
    test = write(
        tmp_path / "test.jsonl", [{"prompt": "same"}, {"prompt": LONG + "?"}, {"prompt": "new"}, {"prompt": "same"}]
    )
    (overlap,) = inspect([train, test]).overlaps
    assert (overlap.first, overlap.second) == (str(train), str(test))
    assert (overlap.exact, overlap.near) == (1, 1)
    assert overlap.examples == ["same", LONG + "?"]
    (exact,) = inspect([train, test], near=0).overlaps
    assert (exact.exact, exact.near) == (1, None)
    assert len(inspect([train, test, train]).overlaps) == 3


def test_lengths_in_tokens(tmp_path: Path, tokenizer_folder: Path) -> None:
    from transformers import AutoTokenizer

    report = one(
        tmp_path, [{"prompt": "How are you today?", "completions": ["Fine.", ""]}], model=str(tokenizer_folder)
    )
    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_folder))
    expected = [len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in ("How are you today?", "Fine.")]
    assert report.length_unit == "tokens" and report.prompt_length["max"] == expected[0]
    assert (report.completion_length["min"], report.completion_length["max"]) == (0, expected[1])
    with pytest.raises(InputError, match="no tokenizer that can be loaded"):
        one(tmp_path, [{"prompt": "a"}], model=str(tmp_path))


@pytest.mark.parametrize("name", published.ALL)
def test_every_published_format_is_named(tmp_path: Path, name: str) -> None:
    report = one(tmp_path, published.ALL[name])
    assert report.formats == {name: len(published.ALL[name])} and report.bad == 0


def test_a_table_is_inspected_through_its_map(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("q,a,s\nWhy?,x,1\nWhy?,y,2\n")
    columns = {"prompt": "q", "completion": "a", "scores.fun": "s"}
    (report,) = inspect(tmp_path / "a.csv", columns=columns).files
    assert report.formats == {"table": 2} and report.rows == 1 and report.scores["fun"].mean == 1.5


def test_nothing_to_look_at(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one source"):
        inspect([])
    with pytest.raises(InputError, match="no good row; all 1 are bad: the prompt is empty"):
        one(tmp_path, [{"prompt": ""}])
    with pytest.raises(InputError, match="no such file"):
        inspect(tmp_path / "none.jsonl")


def test_progress_is_told_row_by_row(tmp_path: Path) -> None:
    from contextlib import contextmanager

    steps: list[int] = []

    class Task:
        def advance(self, n: int = 1) -> None:
            steps.append(n)

        def update(self, text: str) -> None: ...

    @contextmanager
    def bars(description: str, total: int | None = None) -> Any:
        yield Task()

    source = write(tmp_path / "in.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    inspect(source, progress=bars)
    assert steps == [1, 1]
