"""How results are shown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from paretune.cli.output import emit, plain, printable, profile_bars, table


@dataclass(frozen=True)
class _Result:
    folder: Path
    counts: tuple[int, ...]


class _Speaking:
    def to_dict(self) -> dict[str, object]:
        return {"folder": Path("b")}


def test_json_is_exactly_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"result": _Result(Path("a"), (1, 2)), "own": _Speaking(), "text": "ü"}, True, lambda: pytest.fail("shown"))
    out = capsys.readouterr().out
    assert out.endswith("\n") and out.count("\n") == 1
    assert json.loads(out) == {"result": {"folder": "a", "counts": [1, 2]}, "own": {"folder": "b"}, "text": "ü"}


def test_json_never_holds_nan() -> None:
    with pytest.raises(ValueError, match="JSON"):
        emit({"x": float("nan")}, True, lambda: None)


def test_people_see_what_show_prints(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"x": 1}, False, lambda: print("one"))
    assert capsys.readouterr().out == "one\n"


def test_plain_leaves_json_types_alone() -> None:
    assert plain({"a": [1, 2.5, None, True, "x"]}) == {"a": [1, 2.5, None, True, "x"]}


def test_printable_keeps_text_and_drops_control() -> None:
    assert printable("a\n\tb é 👩‍🚀 \xa0") == "a\n\tb é 👩‍🚀 \xa0"
    assert printable("\x1b]0;x\x07\r\x9b\ud800") == "�]0;x����"


def test_table_aligns_text_left_and_numbers_right() -> None:
    lines = table([["a", 1, 0.5], ["long", 1000, None]], header=["name", "n", "mean"])
    assert lines == ["name      n   mean", "a         1  0.500", "long  1,000      -"]
    assert table([[1234.5], [-0.00002], [0.0]]) == ["   1,234", "-2.0e-05", "   0.000"]
    assert table([[1.5e300], [123_456_789.0]]) == [" 1.500e+300", "123,456,789"]
    assert table([]) == []


def test_profile_bars() -> None:
    lines = profile_bars({"brevity": 1.0, "joy": 0.25}, {"joy": 0.25}, width=4)
    assert lines == ["brevity  ████  1.00", "joy      █░░░  0.25  pinned"]
