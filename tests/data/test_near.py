"""Near-duplicates: exactly what comparing every two texts finds, in whatever order, also where all are alike."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paretune.data import near
from paretune.data.near import near_duplicates, near_overlap, prompt_text
from paretune.data.split import normalised_text
from paretune.errors import InputError

THRESHOLDS = [0.3, 0.5, 0.8, 0.9, 1.0]


def shingles(text: str, threshold: float) -> dict[str, set[tuple[str, ...]]]:
    """The definition, written out: character runs of short texts, word runs of long ones, both around the border."""

    def runs(tokens: list[str], length: int) -> set[tuple[str, ...]]:
        return {tuple(tokens[at : at + length]) for at in range(max(1, len(tokens) - length + 1))}

    text = normalised_text(text)
    spaceless = len(text) > near.WIDE * (text.count(" ") + 1)
    found = {}
    if len(text) <= near.SHORT or spaceless:
        found["characters"] = runs(list(f" {text} "), 5)
    if len(text) >= threshold * near.SHORT and not spaceless:
        found["words"] = runs(text.split(" "), 3)
    return found


def alike(one: str, other: str, threshold: float) -> bool:
    a, b = shingles(one, threshold), shingles(other, threshold)
    return any(len(a[kind] & b[kind]) >= threshold * len(a[kind] | b[kind]) - 1e-9 for kind in a.keys() & b.keys())


def by_all_pairs(texts: list[str], threshold: float) -> list[list[int]]:
    group = list(range(len(texts)))
    for i, one in enumerate(texts):
        for j in range(i):
            if alike(one, texts[j], threshold):
                group = [group[j] if each == group[i] else each for each in group]
    found: dict[int, list[int]] = {}
    for at, each in enumerate(group):
        found.setdefault(each, []).append(at)
    return [each for each in found.values() if len(each) > 1]


@st.composite
def edited_texts(draw: st.DrawFn) -> list[str]:
    """Texts that are a few edits away from one of three."""
    alphabet = draw(st.sampled_from(["ab", "abc d", "abcdefghij   "]))
    bases = draw(st.lists(st.text(alphabet, max_size=60), min_size=3, max_size=3))
    texts = []
    for base, seed in draw(st.lists(st.tuples(st.sampled_from(bases), st.integers(0, 999)), max_size=14)):
        rng, text = random.Random(seed), list(base)
        for _ in range(rng.randint(0, 4)):
            at = rng.randint(0, len(text))
            text[at : at + rng.randint(0, 1)] = [rng.choice(alphabet)]
        texts.append("".join(text))
    return texts


@settings(deadline=None)
@given(edited_texts(), st.sampled_from(THRESHOLDS), st.sampled_from([20, 60, 400]))
def test_it_finds_what_comparing_every_two_finds(texts: list[str], threshold: float, short: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "SHORT", short)
        assert near_duplicates(texts, threshold) == by_all_pairs(texts, threshold)
        half = len(texts) // 2
        known, asked = texts[:half], texts[half:]
        expected = [at for at, text in enumerate(asked) if any(alike(text, each, threshold) for each in known)]
        assert near_overlap(asked, known, threshold) == expected


@settings(deadline=None)
@given(edited_texts(), st.randoms(use_true_random=False))
def test_the_order_does_not_matter(texts: list[str], rng: random.Random) -> None:
    order = list(range(len(texts)))
    rng.shuffle(order)
    found = near_duplicates([texts[at] for at in order])
    assert sorted(sorted(order[at] for at in group) for group in found) == sorted(near_duplicates(texts))


def test_small_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    texts = [
        " ".join(rng.choices(["tea", "rain", "bees", "chess", "bread", "owl"], k=rng.randint(3, 9))) for _ in range(300)
    ]
    whole = near_duplicates(texts, 0.6)
    monkeypatch.setattr("paretune.data.setjoin.CHUNK", 7)
    assert near_duplicates(texts, 0.6) == whole and len(whole) > 3


def test_by_hand() -> None:
    # " how do vaccines work? " has 19 runs of 5 characters, without the mark 18, and 17 are shared: 17/20
    assert near_duplicates(["How do vaccines work?", "tea", "how  do vaccines work"]) == [[0, 2]]
    assert near_duplicates(["How do vaccines work?", "how do vaccines work"], 0.86) == []
    assert near_duplicates(["What is the capital of France?", "What is the capital of Spain?"]) == []
    assert near_duplicates(["line 1", "line 12", "line 123"]) == []
    assert near_duplicates([]) == [] == near_duplicates(["one"])
    assert near_duplicates(["", "a", ""]) == [[0, 2]]


def test_a_chain_is_one_group_but_no_overlap() -> None:
    start = "abcdefghijklmnopqrstuvwxyz0123456789"
    chain = [start[at : at + 30] for at in range(5)]
    assert not alike(chain[0], chain[-1], 0.8)
    assert near_duplicates(chain) == [[0, 1, 2, 3, 4]]
    assert near_overlap(chain[2:], chain[:1]) == [] and near_overlap(chain[1:], chain[:1]) == [0]


def test_long_texts_are_compared_by_words() -> None:
    words = [f"word{at}" for at in range(200)]
    # a changed word in the middle costs 3 of 198 runs of three on either side
    text, changed = " ".join(words), " ".join([*words[:99], "another", *words[100:]])
    assert near_duplicates([text, changed], 195 / 201) == [[0, 1]]
    assert near_duplicates([text, changed], 195 / 201 + 1e-6) == []


def test_languages_without_spaces_and_odd_characters() -> None:
    thai = "วัคซีนทำงานอย่างไรในร่างกายของมนุษย์และทำไมเราจึงต้องฉีดซ้ำทุกปี" * 8
    assert len(thai) > near.SHORT and near_duplicates([thai, thai[:-2], "?"]) == [[0, 1]]
    assert near_duplicates(["\ud800 lone surrogate", "\x00", "\ud800 lone  SURROGATE"]) == [[0, 2]]


def test_families_of_one_template_are_connected_without_comparing_all() -> None:
    # 5 x 10^7 pairs, were each compared; a million characters in one text; and a phrase that all share
    letter = "Please write a short reply to customer number {} who asks where the parcel is, and add an apology."
    family = [letter.format(at) for at in range(10_000)]
    assert near_duplicates(family) == [list(range(10_000))]
    others = [f"Please write about {random.Random(at).random()}" for at in range(1000)]
    assert near_duplicates([*others, *family[:1000], "x y " * 250_000]) == [list(range(1000, 2000))]
    assert near_overlap([*family[:800:2], *others[:20]], [*family[1:800:2], *others[20:]]) == list(range(400))


def test_what_of_a_prompt_is_compared() -> None:
    prompt = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    assert prompt_text(prompt) == "user\nassistant\nuser"


@pytest.mark.parametrize("threshold", [0.0, -1.0, 1.1, float("nan")])
def test_a_threshold_that_is_none(threshold: float) -> None:
    with pytest.raises(InputError, match=r"in \(0, 1\]"):
        near_duplicates(["a", "b"], threshold)
