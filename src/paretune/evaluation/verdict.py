"""The verdict in words: does sensing help on this data, what does it beat, and where is the limit?

Sensing helps only if answers under the sensed profile are closer to the target than under every one of the shuffled,
mean, all-ones and no profile, each with a 95% interval over prompts that excludes zero. Anything less is said as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paretune.bootstrap import Estimate

RIVALS = ("shuffled", "mean", "ones", "none")
WORDS = {
    "shuffled": "shuffled profiles",
    "mean": "the training mean",
    "ones": "all ones",
    "none": "no profile",
    "oracle": "the oracle profile",
}


@dataclass(frozen=True)
class Verdict:
    """`helps` is None when it cannot be told. `beats`, `not_shown` and `worse` part the rivals that were run."""

    helps: bool | None
    headline: str
    text: str
    beats: tuple[str, ...] = ()
    not_shown: tuple[str, ...] = ()
    worse: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def listed(names: Sequence[str]) -> str:
    """The conditions in words: "a", "a and b", "a, b and c"."""
    words = [WORDS.get(name, name) for name in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def decide(
    differences: Mapping[str, Estimate], *, has_head: bool, scored: Sequence[str], limits: Sequence[str] = ()
) -> Verdict:
    """The verdict from the paired differences (other minus sensed, positive = sensed is closer) of each rival run."""
    if not has_head:
        text = "Its answers, guided by no sensed profile, can be compared with another policy's."
        return Verdict(None, "This policy has no sensing head, so there is nothing to judge about sensing.", text)
    if not scored:
        text = "None of its objectives can score a new answer here, so no answer's distance to the target is known."
        return Verdict(None, "No verdict: no objective could be scored on the answers.", text, limits=tuple(limits))
    run = [name for name in RIVALS if name in differences]
    beats = tuple(name for name in run if differences[name].above_zero)
    worse = tuple(name for name in run if differences[name].below_zero)
    unclear = tuple(name for name in run if name not in beats and name not in worse)
    parts = (beats, unclear, worse, tuple(limits))
    missing = [name for name in RIVALS if name not in run]
    if missing:
        headline = "No verdict: sensing is judged against shuffled, mean, ones and none, and not all of them were run."
        return Verdict(
            None, headline, f"Not run: {', '.join(missing)} (or sensed itself). {_account(*parts[:3])}", *parts
        )
    if len(beats) == len(RIVALS):
        text = (
            f"Answers under the sensed profile are closer to the target than under {listed(beats)}; every one of the "
            "four 95% intervals over prompts excludes zero."
        )
        return Verdict(True, "Sensing helps on this data.", text, *parts)
    return Verdict(False, _headline(beats, worse), _account(*parts[:3]), *parts)


def _headline(beats: Sequence[str], worse: Sequence[str]) -> str:
    if worse:
        return f"Sensing does not help on this data: it is worse than {listed(worse)}."
    if beats:
        return f"Sensing is not shown to help on this data: it beats {listed(beats)}, but not all four rivals."
    return "Sensing is not shown to help on this data: it beats none of the four rivals."


def _account(beats: Sequence[str], unclear: Sequence[str], worse: Sequence[str]) -> str:
    """One sentence on each group of rivals."""
    out = []
    if beats:
        out.append(f"Answers under the sensed profile are closer to the target than under {listed(beats)}.")
    if unclear:
        out.append(f"No difference is shown against {listed(unclear)}: the 95% interval includes zero.")
    if worse:
        out.append(
            f"They are farther from the target than under {listed(worse)}."
            if beats or unclear
            else f"Answers under the sensed profile are farther from the target than under {listed(worse)}."
        )
    return " ".join(out)


def find_limits(
    oracle_over_none: Estimate | None, sensed_over_oracle: Estimate | None, gains: Mapping[str, Estimate]
) -> list[str]:
    """Where the limit lies: in following a profile (control), or in sensing it (the head).

    `oracle_over_none`: distance without a profile minus with the oracle's; `sensed_over_oracle`: distance when sensed
    minus with the oracle's; `gains`: per objective, the constant's squared error minus the head's.
    """
    out = []
    if oracle_over_none is not None and oracle_over_none.value is not None:
        if not oracle_over_none.above_zero:
            out.append(
                "Control is a limit: even the oracle profile does not bring the answers measurably closer to the "
                "target than no profile does."
            )
        elif sensed_over_oracle is not None and sensed_over_oracle.above_zero and sensed_over_oracle.value is not None:
            out.append(
                "The head is a limit: with the oracle profile the same policy comes closer to the target, by "
                f"{sensed_over_oracle.value:.3f}."
            )
    blind = [name for name, gain in gains.items() if not gain.above_zero]
    if blind:
        out.append(f"The head does not predict better than the training mean, measurably, for: {', '.join(blind)}.")
    return out
