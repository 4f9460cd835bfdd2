"""Near-duplicate texts: the same question asked twice with a word or a mark changed.

Texts are alike when the Jaccard index of their shingles (Broder, "On the resemblance and containment of documents",
1997) reaches a threshold: shared shingles over all shingles of the two. Texts of up to `SHORT` characters, and those
without spaces between words, are compared by runs of 5 characters; longer ones by runs of 3 words; around the border
by both, so that no pair falls between the two. Case, spacing and Unicode form do not count.

The search is exact (`setjoin`): no sampling and no hashing, so the result depends on nothing but the texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paretune.data.rows import Messages
from paretune.data.setjoin import Across, Groups, Ints, join, make_sets
from paretune.data.split import normalised_text
from paretune.errors import InputError

THRESHOLD = 0.8
SHORT = 400
"""Characters up to which a text is compared by characters."""
CHARACTERS, WORDS = 5, 3
"""Lengths of the shingles."""
WIDE = 20
"""A text with more characters than this a word is one of a language that puts no spaces between words."""


def near_duplicates(texts: Sequence[str], threshold: float = THRESHOLD) -> list[list[int]]:
    """Groups of two or more texts that are connected by a chain of pairs with a Jaccard index of at least `threshold`.

    Each group holds positions in `texts`, ascending; groups are in the order of their first text. Equal texts are in
    one group. Which texts fall together does not depend on their order.

    Raises:
        InputError: a threshold outside (0, 1].
    """
    distinct, of = _distinct(texts, threshold)
    groups = Groups(len(distinct))
    for which, tokens in _shingled(distinct, threshold):
        local = Groups(len(which))
        join(make_sets(*tokens, len(which)), threshold, local)
        for label in np.unique(local.labels):
            first, *others = which[local.labels == label]
            for other in others:
                groups.connect(int(first), int(other))
    found: dict[int, list[int]] = {}
    for at, number in enumerate(of):
        found.setdefault(int(groups.labels[number]), []).append(at)
    return [group for group in found.values() if len(group) > 1]


def near_overlap(texts: Sequence[str], known: Sequence[str], threshold: float = THRESHOLD) -> list[int]:
    """Positions of the `texts` that equal or nearly repeat some text of `known` (a Jaccard index of at least
    `threshold`), ascending. Unlike in a group, it takes a direct pair.

    Raises:
        InputError: a threshold outside (0, 1].
    """
    distinct, of = _distinct([*known, *texts], threshold)
    sides = np.ones(len(distinct), dtype=np.int64)
    sides[of[: len(known)]] = 0
    found = sides == 0
    for which, tokens in _shingled(distinct, threshold):
        links = Across(sides[which])
        join(make_sets(*tokens, len(which)), threshold, links)
        found[which[links.found]] = True
    return [at for at, number in enumerate(of[len(known) :]) if found[number]]


def prompt_text(prompt: Messages) -> str:
    """What of a prompt is compared: all that user and assistant said. A system message, which prompts have in common,
    would make them all alike."""
    return "\n".join(message["content"] for message in prompt if message["role"] != "system")


def _distinct(texts: Sequence[str], threshold: float) -> tuple[list[str], Ints]:
    """The distinct normalised texts, sorted, and the number of each text's own among them."""
    if not 0 < threshold <= 1:
        raise InputError(f"the threshold of near-duplicates must lie in (0, 1], found {threshold}")
    normalised = [normalised_text(text) for text in texts]
    distinct = sorted(set(normalised))
    number = {text: at for at, text in enumerate(distinct)}
    return distinct, np.array([number[text] for text in normalised], dtype=np.int64)


def _shingled(texts: Sequence[str], threshold: float) -> Iterator[tuple[Ints, tuple[Ints, Ints]]]:
    """For characters, then for words: which texts are compared so, and their shingles as (text, shingle) pairs."""
    by_characters, by_words = [], []
    for at, text in enumerate(texts):
        spaceless = len(text) > WIDE * (text.count(" ") + 1)
        if len(text) <= SHORT or spaceless:
            by_characters.append(at)
        # sets whose Jaccard index is t differ in size by a factor of t at most
        if len(text) >= threshold * SHORT and not spaceless:
            by_words.append(at)
    if by_characters:
        # a space at both ends: "line 1" and "line 12" end differently
        codes = [
            np.frombuffer(f" {texts[at]} ".encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.int64)
            for at in by_characters
        ]
        yield np.array(by_characters), _runs(codes, CHARACTERS)
    if by_words:
        vocabulary: dict[str, int] = {}
        words = [
            np.array([vocabulary.setdefault(word, len(vocabulary)) for word in texts[at].split(" ")], dtype=np.int64)
            for at in by_words
        ]
        yield np.array(by_words), _runs(words, WORDS)


def _runs(tokens: Sequence[Ints], length: int) -> tuple[Ints, Ints]:
    """(text, number of the run) for every run of `length` tokens; a text of fewer is one run, filled up with 0."""
    lengths = np.array([max(len(each), length) for each in tokens])
    joined = np.zeros(int(lengths.sum()), dtype=np.int64)
    start = np.cumsum(lengths) - lengths
    for at, each in zip(start.tolist(), tokens, strict=True):
        joined[at : at + len(each)] = each + 1
    present = np.bincount(joined) > 0
    joined = (np.cumsum(present) - 1)[joined]
    base = top = int(present.sum())
    number = joined
    for step in range(1, length):
        if top * base >= 2**62:
            values, number = np.unique(number, return_inverse=True)
            top = len(values)
        number = number[:-1] * base + joined[step:]
        top *= base
    text = np.repeat(np.arange(len(tokens)), lengths)
    whole = text[: len(number)] == text[length - 1 :]
    _, number = np.unique(number[whole], return_inverse=True)
    return text[: len(whole)][whole], number
