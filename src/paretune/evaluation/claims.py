"""What a comparison shows, in plain sentences: one for each test, and who is first in what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paretune.bootstrap import Estimate

WORDS = {
    "multi_win": "mean win rate",
    "hypervolume": "hypervolume",
    "distance": "distance to the target",
    "inner_product": "inner product of weights and scores",
}
LOWER_IS_BETTER = ("distance",)


def difference_claim(
    figure: str, first: str, second: str, difference: Estimate, p: float | None, count: int, *, shown: bool
) -> str:
    """ "a's mean win rate is higher than b's by 0.060 [0.020, 0.100], p = .004 after Holm's correction over 6 tests."

    `difference` is first minus second; `p` is corrected over `count` tests.
    """
    words = WORDS[figure]
    if difference.value is None or p is None:
        why = difference.why or "there is one prompt only"
        return f"Whether {first} and {second} differ in {words} cannot be told: {why}."
    correction = f" after Holm's correction over {count} tests" if count > 1 else ""
    tail = f"{p_text(p)}{correction}."
    if not shown:
        return f"No difference is shown between {first} and {second} in {words}: {_amount(difference)}, {tail}"
    lower = figure in LOWER_IS_BETTER
    if (difference.value > 0) == lower:  # the better one is named first
        first, second = second, first
    size = difference if difference.value > 0 else _turned(difference)
    return f"{first}'s {words} is {'smaller' if lower else 'higher'} than {second}'s by {_amount(size)}, {tail}"


def p_text(p: float) -> str:
    """ "p = .004", "p < .001"."""
    if p < 0.001:
        return "p < .001"
    text = f"{p:.3f}" if p < 0.01 else f"{p:.2f}"
    return f"p = {text.removeprefix('0')}"


def _turned(estimate: Estimate) -> Estimate:
    assert estimate.value is not None
    low = -estimate.high if estimate.high is not None else None
    high = -estimate.low if estimate.low is not None else None
    return Estimate(-estimate.value, low, high, estimate.n)


def _amount(estimate: Estimate) -> str:
    interval = f" [{_three(estimate.low)}, {_three(estimate.high)}]" if estimate.low is not None else ""
    return f"{_three(estimate.value)}{interval}"


def _three(value: float | None) -> str:
    """Three decimals, and no minus before zero."""
    assert value is not None
    return f"{round(value, 3) + 0.0:.3f}"


def shown_and_not(tests: Sequence[Mapping[str, Any]], policy: str | None = None) -> list[str]:
    """The tests (of one policy, if given) in short: each difference shown, and a sentence a figure for the rest."""
    own = [each for each in tests if policy is None or policy in (each["first"], each["second"])]
    out = [each["claim"] for each in own if each["significant"]]
    for figure, words in WORDS.items():
        rest = [each for each in own if each["figure"] == figure and not each["significant"]]
        if rest and policy is None:
            total = sum(each["figure"] == figure for each in own)
            out.append(f"In {words}, {len(rest)} of {total} tests show no difference.")
        elif rest:
            rivals = [each["second"] if each["first"] == policy else each["first"] for each in rest]
            out.append(f"In {words}, no difference from {listed(rivals)} is shown.")
    return out


def summary_claims(figures: Mapping[str, Mapping[str, Any]], tests: Sequence[Mapping[str, Any]]) -> list[str]:
    """Who is first in each figure, and over whom that is shown; nothing for a figure that fewer than two have."""
    out = []
    for figure, words in WORDS.items():
        known = {
            name: own[figure]["value"]
            for name, own in figures.items()
            if own[figure] is not None and own[figure]["value"] is not None
        }
        if len(known) < 2:
            continue
        best = (min if figure in LOWER_IS_BETTER else max)(known, key=lambda name: known[name])
        tied = [name for name, value in known.items() if abs(value - known[best]) < 1e-9]
        if len(tied) == len(known):
            out.append(f"All policies have the same {words}, {known[best]:.3f}.")
            continue
        rank = "smallest" if figure in LOWER_IS_BETTER else "highest"
        have = "has" if len(tied) == 1 else "have"
        out.append(f"{listed(tied)} {have} the {rank} {words}, {known[best]:.3f}{_lead(figure, best, tied, tests)}.")
    return out


def _lead(figure: str, best: str, tied: Sequence[str], tests: Sequence[Mapping[str, Any]]) -> str:
    """Over whom the first one's lead is shown."""
    own = [each for each in tests if each["figure"] == figure and best in (each["first"], each["second"])]
    rivals = [(each["second"] if each["first"] == best else each["first"], each["significant"]) for each in own]
    rivals = [(name, shown) for name, shown in rivals if name not in tied]
    shown = [name for name, significant in rivals if significant]
    unclear = [name for name, significant in rivals if not significant]
    if not rivals:
        return ""
    if not unclear:
        return f"; the lead over {listed(shown)} is shown"
    if not shown:
        return f"; the lead over {listed(unclear)} is not shown"
    return f"; the lead over {listed(shown)} is shown, that over {listed(unclear)} is not"


def listed(names: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
