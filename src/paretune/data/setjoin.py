"""All pairs of sets that are alike: an exact set-similarity join by Jaccard, without comparing every two.

Elements are put in one order, rarest first. Two sets whose Jaccard index reaches t share an element within the first
|x| - ceil(t |x|) + 1 of each, so only sets that meet there are compared (prefix filter: Bayardo, Ma and Srikant,
"Scaling up all pairs similarity search", WWW 2007), and only where the sizes and the places of the first shared
element leave room for enough overlap (length and positional filter: Xiao, Wang, Lin and Yu, "Efficient similarity
joins for near duplicate detection", WWW 2008). A bitmap bounds the overlap from above before it is counted. Every
filter is a bound, so nothing is missed and nothing is left to chance.

What is asked of the pairs is not to list them (a hundred thousand questions from one template have five billion) but
which sets they connect. So pairs that would tell nothing new are passed over in whole runs (`Links`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

SLACK = 1e-9
"""What rounding may cost a bound; far below 1/(|x| + |y|), so it never lets a wrong pair through."""
WORDS = 4
"""64-bit words of a set's bitmap."""
CHUNK = 1 << 18
"""Candidate pairs looked at together: bounds the memory."""


class Links(Protocol):
    """What is known of the sets' connections, and which pairs would still tell something.

    `labels` holds a number a set; pairs within one label are never looked at.
    """

    labels: Ints

    def settled(self, one: Any, other: Any) -> Any:
        """Do these pairs (numbers of sets, or arrays of them) need no look any more?"""

    def connect(self, one: int, other: int) -> None:
        """The two sets are alike."""


class Groups:
    """Connected components: pairs within one component are settled. `labels` are always up to date (the smaller
    component is relabelled, which costs n log n in all)."""

    def __init__(self, count: int) -> None:
        self.labels: Ints = np.arange(count)
        self.members: dict[int, list[int]] = {}

    def settled(self, one: Any, other: Any) -> Any:
        """Within one component."""
        return self.labels[one] == self.labels[other]

    def connect(self, one: int, other: int) -> None:
        """Join two components."""
        small, large = int(self.labels[one]), int(self.labels[other])
        if small == large:
            return
        of_small, of_large = self.members.pop(small, [small]), self.members.pop(large, [large])
        if len(of_small) > len(of_large):
            small, large, of_small, of_large = large, small, of_large, of_small
        self.labels[of_small] = large
        of_large.extend(of_small)
        self.members[large] = of_large


class Across:
    """Two sides: which sets of side 1 are like some set of side 0? A set that is found is settled."""

    def __init__(self, sides: Ints) -> None:
        self.labels: Ints = sides
        self.found: Mask = np.zeros(len(sides), dtype=bool)

    def settled(self, one: Any, other: Any) -> Any:
        """Of one side, or found already."""
        return self.found[one] | self.found[other] | (self.labels[one] == self.labels[other])

    def connect(self, one: int, other: int) -> None:
        """Mark the one of side 1."""
        self.found[one if self.labels[one] else other] = True


@dataclass(frozen=True)
class Sets:
    """Sets in compressed form. `size` [D]: elements of each; `element` [E]: those that other sets have too, as numbers
    in the common order, ascending within a set; set d has element[start[d] : start[d + 1]]."""

    size: Ints
    element: Ints
    start: Ints
    bitmap: NDArray[np.uint64]
    """[D, WORDS]: the parity of each bit's elements."""

    @property
    def shared(self) -> Ints:
        """How many elements of each set other sets have too [D]."""
        return np.diff(self.start)


def make_sets(owner: Ints, element: Ints, count: int) -> Sets:
    """Sets of `count` owners from (owner, element) pairs; elements are numbers from 0, repeats are allowed."""
    top = int(element.max()) + 1 if len(element) else 1
    frequency = np.bincount(element, minlength=top)
    # an element met once can be in no overlap: it counts in the size, and comes first in the order
    alone = int((frequency == 1).sum())
    place = np.empty(top, dtype=np.int64)
    place[np.argsort(frequency, kind="stable")] = np.arange(top) - int((frequency == 0).sum())
    ordered = np.unique(owner * top + place[element])
    owner, element = ordered // top, ordered % top - alone
    size = np.bincount(owner, minlength=count)
    owner, element = owner[element >= 0], element[element >= 0]
    start = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=count))]).astype(np.int64)
    bitmap = np.zeros(count * WORDS, dtype=np.uint64)
    bit = element % (64 * WORDS)
    np.bitwise_xor.at(bitmap, owner * WORDS + bit // 64, np.left_shift(np.uint64(1), (bit % 64).astype(np.uint64)))
    return Sets(size, element, start, bitmap.reshape(count, WORDS))


@dataclass(frozen=True)
class _Entries:
    """One entry for each element of each set's prefix: the element, the set, and its place in the set's order."""

    element: Ints
    owner: Ints
    place: Ints

    def take(self, order: Any) -> _Entries:
        return _Entries(self.element[order], self.owner[order], self.place[order])


def join(sets: Sets, threshold: float, links: Links) -> None:
    """Tell `links` of pairs of sets whose Jaccard index is at least `threshold` (above 0), until all are settled."""
    entries = _prefixes(sets, threshold)
    order = np.lexsort((entries.owner, sets.size[entries.owner], entries.element))
    # neighbours first: they connect the great families, whose other pairs then need no look
    for pairs in _neighbours(entries.take(order), links):
        _confirm(sets, threshold, links, pairs)
    order = np.lexsort((links.labels[entries.owner], entries.element))
    for pairs in _across_labels(entries.take(order), links):
        _confirm(sets, threshold, links, pairs)


def _prefixes(sets: Sets, threshold: float) -> _Entries:
    shared = sets.shared
    alone = sets.size - shared
    length = sets.size - np.ceil(threshold * sets.size - SLACK).astype(np.int64) + 1
    owner = np.repeat(np.arange(len(sets.size)), shared)
    place = np.arange(len(sets.element)) - sets.start[owner] + alone[owner]
    keep = place < length[owner]
    return _Entries(sets.element[keep], owner[keep], place[keep])


_Pairs = tuple[_Entries, Ints, Ints]
"""Entries, and the positions of the two of each pair among them."""


def _neighbours(entries: _Entries, links: Links) -> Iterator[_Pairs]:
    """Each entry with the nearest one before and after it that has the same element and another label; the most
    frequent elements come first, since they connect most."""
    count = len(entries.element)
    if count < 2:
        return
    label = links.labels[entries.owner]
    new_element = np.diff(entries.element) != 0
    first, end = _ends(np.concatenate([[0], np.cumsum(new_element | (np.diff(label) != 0))]))
    for high in range(count, 0, -CHUNK):
        at = np.arange(max(0, high - CHUNK), high)
        for beside in (first[at] - 1, end[at]):
            inside = np.flatnonzero((beside >= 0) & (beside < count))
            inside = inside[entries.element[beside[inside]] == entries.element[at[inside]]]
            yield entries, at[inside], beside[inside]


def _across_labels(entries: _Entries, links: Links) -> Iterator[_Pairs]:
    """Pairs of entries with the same element and different labels; entries are sorted by element and label."""
    count = len(entries.element)
    if count < 2:
        return
    label = links.labels[entries.owner]
    new_element = np.diff(entries.element) != 0
    _, end_of_element = _ends(np.concatenate([[0], np.cumsum(new_element)]))
    _, end_of_run = _ends(np.concatenate([[0], np.cumsum(new_element | (np.diff(label) != 0))]))
    partners = end_of_element - end_of_run
    having = np.flatnonzero(partners)
    total = np.cumsum(partners[having])
    cuts = np.searchsorted(total, np.arange(CHUNK, int(total[-1]) if len(total) else 0, CHUNK), side="right")
    for low, high in itertools.pairwise([0, *np.unique(cuts).tolist(), len(having)]):
        one = having[low:high]
        amount = partners[one]
        offset = np.arange(amount.sum()) - np.repeat(np.cumsum(amount) - amount, amount)
        yield entries, np.repeat(one, amount), np.repeat(end_of_run[one], amount) + offset


def _ends(run: Ints) -> tuple[Ints, Ints]:
    """First position and end of each position's run; `run` is ascending from 0."""
    length = np.bincount(run)
    end = np.cumsum(length)
    return (end - length)[run], end[run]


def _confirm(sets: Sets, threshold: float, links: Links, pairs: _Pairs) -> None:
    """Filter candidate pairs by bounds, count the overlap of those that are left, and connect those that are alike."""
    entries, at, to = pairs
    one, other = entries.owner[at], entries.owner[to]
    keep = np.flatnonzero(~links.settled(one, other))
    one, other, at, to = one[keep], other[keep], at[keep], to[keep]
    size, size_other = sets.size[one], sets.size[other]
    # the first element that two sets share lies at these places, or an earlier one does: then it finds the pair
    room = np.minimum(size - entries.place[at], size_other - entries.place[to])
    needed = threshold / (1 + threshold) * (size + size_other) - SLACK
    keep = np.flatnonzero(
        (np.minimum(size, size_other) >= threshold * np.maximum(size, size_other) - SLACK) & (room >= needed)
    )
    one, other, needed = one[keep], other[keep], needed[keep]
    apart = np.bitwise_count(sets.bitmap[one] ^ sets.bitmap[other]).sum(axis=1, dtype=np.int64)
    keep = np.flatnonzero((sets.shared[one] + sets.shared[other] - apart) / 2 >= needed)
    one, other = np.minimum(one[keep], other[keep]), np.maximum(one[keep], other[keep])
    found = np.unique(one * len(sets.size) + other)
    _count(sets, threshold, links, found // len(sets.size), found % len(sets.size))


def _count(sets: Sets, threshold: float, links: Links, ones: Ints, others: Ints) -> None:
    """Jaccard indices of the pairs, exactly; `ones` ascends."""
    marked = np.zeros(int(sets.element.max()) + 1 if len(sets.element) else 0, dtype=bool)
    current = -1
    start, size = sets.start, sets.size
    for one, other in zip(ones.tolist(), others.tolist(), strict=True):
        if links.settled(one, other):
            continue
        if one != current:
            if current >= 0:
                marked[sets.element[start[current] : start[current + 1]]] = False
            marked[sets.element[start[one] : start[one + 1]]] = True
            current = one
        overlap = int(np.count_nonzero(marked[sets.element[start[other] : start[other + 1]]]))
        if overlap >= threshold * (size[one] + size[other] - overlap) - SLACK:
            links.connect(one, other)
