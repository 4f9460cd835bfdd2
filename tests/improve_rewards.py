"""Rewards of the tests of online rounds. This module imports nothing, so that its fingerprint is quick to take."""

from __future__ import annotations

from os.path import exists

CALLS = {"rising": 0, "falling": 0}
BROKEN = "reward-is-broken"
"""While there is a file of this name, `vowels` is out of order."""


def vowels(completions, **_):  # type: ignore[no-untyped-def]
    """The share of vowels among the characters; None for an empty answer."""
    if exists(BROKEN):
        raise RuntimeError("the reward is out of order")
    return [sum(char in "aeiou" for char in text) / len(text) if text else None for text in completions]


def shy(completions, **_):  # type: ignore[no-untyped-def]
    """Scores the words of the data alone."""
    return [float(len(text)) if text.startswith(("It is ", "Well, ", "Hmm, ")) else None for text in completions]


def rising(completions, **_):  # type: ignore[no-untyped-def]
    """Higher with every call, whatever the answers are."""
    CALLS["rising"] += 1
    return [0.05 * CALLS["rising"] + len(text) / 10_000 for text in completions]


def falling(completions, **_):  # type: ignore[no-untyped-def]
    """Lower with every call, whatever the answers are."""
    CALLS["falling"] += 1
    return [0.9 - 0.05 * CALLS["falling"] + len(text) / 10_000 for text in completions]
