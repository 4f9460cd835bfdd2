"""Splits: disjoint by prompt, near-duplicates together, seeded, the same whatever the order."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import paretune
from paretune.data import Row, read_rows, split_rows
from paretune.data.split import normalised_key
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


# --- near-duplicates ------------------------------------------------------------------------------------------------

ASKED = "Please explain to a curious child how {} come to be, in a few words."
"""Long enough for one more mark to make a near-duplicate, and for another subject to make none."""


def families(count: int) -> list[Row]:
    """Each question three times, with a mark changed."""
    subjects = [f"{chr(97 + at % 26) * 4}{chr(97 + at // 26) * 6} {at * 7919}" for at in range(count)]
    texts = [ASKED.format(each) for each in subjects]
    return rows([variant for text in texts for variant in (text, text[:-1] + "!", text + " Thanks")])


def test_near_duplicates_fall_into_one_part() -> None:
    data = families(120)
    got, exact = parts(data), parts(data, near_duplicates=0.0)
    triples = [(str(3 * at), str(3 * at + 1), str(3 * at + 2)) for at in range(120)]
    assert all(len({got[each] for each in triple}) == 1 for triple in triples)
    assert sum(len({exact[each] for each in triple}) > 1 for triple in triples) > 20
    assert split_rows(data).joined == 240 and split_rows(data, near_duplicates=0.0).joined == 0
    assert set(got.values()) == {"train", "validation", "test"}


def test_a_group_goes_where_its_smallest_key_is_drawn() -> None:
    data = families(60)
    exact, got = parts(data, near_duplicates=0.0), parts(data)
    for at in range(60):
        first = min(data[3 * at : 3 * at + 3], key=lambda row: normalised_key(row.prompt))
        assert got[first.id] == exact[first.id]


def test_the_order_moves_no_group() -> None:
    data = families(80)
    before = parts(data)
    random.Random(2).shuffle(data)
    assert parts(data) == before


@given(st.lists(st.sampled_from(MANY), min_size=30, max_size=60, unique_by=lambda row: row.id), st.integers(0, 99))
def test_without_near_duplicates_the_split_is_that_of_equal_prompts(data: list[Row], seed: int) -> None:
    assert parts(data, seed=seed) == parts(data, seed=seed, near_duplicates=0.0)


def test_the_demo_has_no_near_duplicates() -> None:
    data = read_rows(Path(paretune.__file__).parent / "demo" / "scored.jsonl.gz")
    split = split_rows(data)
    assert split.joined == 0 and split == split_rows(data, near_duplicates=0.0)


def test_a_shared_system_prompt_makes_nothing_alike() -> None:
    system = {"role": "system", "content": "You are a patient assistant. " * 20}
    data = [Row([system, *row.prompt], id=row.id) for row in MANY[:100]]
    assert split_rows(data).joined == 0


def test_all_alike_is_told() -> None:
    letter = "Please write a short reply to customer number {} who asks where the parcel is."
    with pytest.raises(InputError, match=r"1 distinct prompts \(of 50, the others nearly repeat them\) are too few"):
        split_rows(rows([letter.format(at) for at in range(50)]))


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_bad_thresholds(threshold: float) -> None:
    with pytest.raises(InputError, match="near_duplicates must lie in"):
        split_rows(MANY, near_duplicates=threshold)
