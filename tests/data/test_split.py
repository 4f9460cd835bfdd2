"""Splits: prompt-disjoint, seeded, the same whatever the order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paretune.data import Row, split_rows
from paretune.errors import InputError


def rows(texts: list[str]) -> list[Row]:
    return [Row([{"role": "user", "content": text}], id=str(at)) for at, text in enumerate(texts)]


def parts(data: list[Row], **options: float) -> dict[str, str]:
    split = split_rows(data, **options)  # type: ignore[arg-type]
    return {row.id: name for name in ("train", "validation", "test") for row in getattr(split, name)}


MANY = rows([f"prompt {at}" for at in range(1000)])


def test_every_row_is_in_one_part_and_sizes_are_about_right() -> None:
    split = split_rows(MANY)
    assert len(split.train) + len(split.validation) + len(split.test) == 1000
    assert 70 <= len(split.validation) <= 130 and 70 <= len(split.test) <= 130
    assert [row.id for row in split.train] == sorted((row.id for row in split.train), key=int)


def test_order_and_further_rows_move_nothing() -> None:
    before = parts(MANY)
    shuffled = MANY[:]
    random.Random(1).shuffle(shuffled)
    assert parts(shuffled) == before
    more = parts(MANY + [Row([{"role": "user", "content": f"new {at}"}], id=f"n{at}") for at in range(500)])
    assert {key: more[key] for key in before} == before


def test_the_seed_decides() -> None:
    assert parts(MANY, seed=1) == parts(MANY, seed=1) != parts(MANY, seed=2)


def test_the_same_prompt_never_stands_in_two_parts() -> None:
    same = [variant for at in range(200) for variant in (f"Tea {at}?", f"  tea\n{at}? ", f"ＴＥＡ {at}?")]
    got = parts(rows(same))
    assert all(got[str(3 * at)] == got[str(3 * at + 1)] == got[str(3 * at + 2)] for at in range(200))


def test_history_makes_another_prompt() -> None:
    last = {"role": "user", "content": "yes"}
    data = [
        Row([{"role": "user", "content": f"{at}"}, {"role": "assistant", "content": "?"}, last], id=f"{at}")
        for at in range(99)
    ]
    assert set(parts(data).values()) == {"train", "validation", "test"}


@given(st.sets(st.text(min_size=1, max_size=3), min_size=6, max_size=12), st.integers(0, 99))
def test_no_wanted_part_is_empty_with_few_prompts(texts: set[str], seed: int) -> None:
    data = rows(sorted({" ".join(text.casefold().split()) + f" {at}" for at, text in enumerate(sorted(texts))}))
    assert set(parts(data, seed=seed).values()) == {"train", "validation", "test"}


def test_parts_that_are_not_wanted_are_empty() -> None:
    split = split_rows(MANY, validation=0.0, test=0.0)
    assert len(split.train) == 1000
    assert split_rows(MANY, validation=0.5, test=0.0).test == []


@pytest.mark.parametrize(("validation", "test"), [(-0.1, 0.1), (0.5, 0.5), (1.0, 0.0), (float("nan"), 0.1)])
def test_bad_fractions(validation: float, test: float) -> None:
    with pytest.raises(InputError, match="shares"):
        split_rows(MANY, validation=validation, test=test)


def test_too_few_prompts() -> None:
    with pytest.raises(InputError, match="2 distinct prompts are too few"):
        split_rows(rows(["a", "A", "b"]))
