"""Prompts, conditions and reference points, as they are typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paretune.cli.inputs import check_target_file, read_condition, read_prompts, read_reference
from paretune.errors import InputError

NAMES = ["brevity", "joy"]


def test_a_prompt_or_a_file_of_prompts(tmp_path: Path) -> None:
    assert [row.text for row in read_prompts(" Hi there", None)] == [" Hi there"]
    (tmp_path / "p.txt").write_text("One?\n\nTwo?\n")
    assert [row.text for row in read_prompts(None, tmp_path / "p.txt")] == ["One?", "Two?"]


@pytest.mark.parametrize(
    ("prompt", "prompts", "message"),
    [
        (None, None, "either --prompt TEXT or --prompts FILE"),
        ("a", Path("b"), "either --prompt TEXT or --prompts FILE"),
        (" \n", None, "--prompt: the prompt is empty"),
        ("\udcff", None, "--prompt: a text must not hold a lone surrogate"),
        (None, Path("missing.txt"), "no such file"),
    ],
)
def test_wrong_prompts(prompt: str | None, prompts: Path | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_prompts(prompt, prompts)


def test_conditions(tmp_path: Path, write_rows_file: Callable[..., Path]) -> None:
    assert read_condition("mean", NAMES, 2) == "mean"
    one = tmp_path / "one.json"
    one.write_text('{"joy": 1}')
    assert read_condition(str(one), NAMES, 2) == {"joy": 1.0}
    many = write_rows_file({"brevity": 0.5, "joy": 0}, None)
    assert read_condition(str(many), NAMES, 2) == [{"brevity": 0.5, "joy": 0.0}, None]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"joy": 1}'], "holds 1 profiles for 2 prompts"),
        (['{"joy": 1}', "{"], "line 2: is not JSON"),
        (['{"joy": 1}', '{"jay": 1}'], "line 2: .*unknown objective 'jay'. Did you mean 'joy'"),
        (['{"joy": 1}', '{"joy": 2}'], "line 2: .*must lie in"),
        (['{"joy": 1}', "[1]"], "line 2: .*found list"),
    ],
)
def test_wrong_condition_files(write_rows_file: Callable[..., Path], lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_condition(str(write_rows_file(*lines)), NAMES, 2)


def test_an_unknown_condition_offers_the_nearest() -> None:
    with pytest.raises(InputError, match="Did you mean 'sensed'"):
        read_condition("sense", NAMES, 1)


def test_references() -> None:
    assert read_reference(None) is None
    assert read_reference("0, 1.5") == [0.0, 1.5]
    assert read_reference("a=0, b c=-1e3") == {"a": 0.0, "b c": -1000.0}
    for wrong in ("", "a", "a=0,1", "a=x"):
        with pytest.raises(InputError, match="a reference is written"):
            read_reference(wrong)
    with pytest.raises(InputError, match="twice"):
        read_reference("a=0,a=1")


def test_an_existing_file_is_not_replaced_unasked(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.touch()
    check_target_file(None, overwrite=False)
    check_target_file(tmp_path / "new", overwrite=False)
    check_target_file(there, overwrite=True)
    with pytest.raises(InputError, match="--overwrite"):
        check_target_file(there, overwrite=False)
