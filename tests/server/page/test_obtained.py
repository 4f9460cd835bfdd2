"""What an answer obtained: by lexical rewards, and by nothing that loads a model or runs code."""

from __future__ import annotations

from pathlib import Path

import pytest

from paretune.profile import Objective, Scale
from paretune.server.obtained import Obtained, is_cheap

ASKED = [{"role": "user", "content": "What is tea?"}]


def _objective(name: str, spec: str, **settings: object) -> Objective:
    settings.setdefault("scale", Scale("fixed", low=-10, high=0))
    return Objective(name, spec, scale_kind="fixed", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spec", "cheap"),
    [
        ("lexical:brevity", True),
        ("gate:lexical:length if lexical:question > 0", True),
        ("ensemble:mean(lexical:length, lexical:question)", True),
        ("gate:lexical:length if python:os:getcwd > 0", False),
        ("ensemble:mean(lexical:length, embed:relevance)", False),
        ("python:os:system", False),
        ("embed:relevance", False),
        ("hf:some/model", False),
        ("column:judge", False),
        ("lexical:nothing", False),
        ("no such spec", False),
        ("ensemble:/no/such/file.yaml", False),
        ("ensemble:/a\0b.yaml", False),
        ("ensemble:~nobody-has-this-name/a.yaml", False),
        ("lexical:words:a\0b", False),
        ("lexical:words:/etc/passwd", False),
        ("lexical:words:/dev/zero", False),
        ("gate:lexical:words:/dev/zero if lexical:brevity > 0", False),
    ],
)
def test_only_what_reads_the_text_alone_is_cheap(spec: str, cheap: bool) -> None:
    assert is_cheap(spec) is cheap


def test_an_answer_is_scored_and_normalised() -> None:
    obtained = Obtained.of([_objective("brevity", "lexical:brevity"), _objective("judge", "column:judge")])
    # four words: -4 on a scale from -10 to 0
    assert obtained(ASKED, "Tea is a drink.") == {"brevity": {"value": 0.6, "score": -4.0}, "judge": None}


def test_less_is_better() -> None:
    objective = _objective(
        "length", "lexical:length", direction="minimise", scale=Scale("fixed", reverse=True, low=0, high=10)
    )
    assert Obtained.of([objective])(ASKED, "One two three.") == {"length": {"value": 0.7, "score": 3.0}}


def test_an_objective_that_abstains_is_not_scored() -> None:
    assert Obtained.of([_objective("easy", "lexical:readability")])(ASKED, "…") == {"easy": None}


def test_a_spec_that_breaks_its_reader_is_not_scored_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    spec = "ensemble:mean(" * 400 + "lexical:length" + ", lexical:length)" * 400
    scores = Obtained.of([_objective("odd", spec), _objective("brevity", "lexical:brevity")])(ASKED, "Tea.")
    assert scores == {"odd": None, "brevity": {"value": 0.9, "score": -1.0}}
    assert "not scored by objective 'odd'" in caplog.text


def test_without_a_scale_and_by_a_word_list_there_is_no_score(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("tea\n")
    objectives = [
        _objective("bare", "lexical:brevity", scale=None),
        _objective("words", f"lexical:words:{tmp_path / 'words.txt'}"),
        _objective("brevity", "lexical:brevity"),
    ]
    scores = Obtained.of(objectives)(ASKED, "Tea.")
    assert list(scores) == ["bare", "words", "brevity"]
    assert scores["bare"] is None and scores["words"] is None
    assert scores["brevity"] == {"value": 0.9, "score": -1.0}
