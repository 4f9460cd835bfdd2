"""Objectives measured from the text alone: `lexical:NAME`. A raw score is higher the more of the quality there is.

Words are runs of letters and digits (with inner apostrophes and hyphens); in scripts without spaces (Chinese, Japanese)
every character counts as a word. Sentences end at . ! ? and their full-width forms, and at line ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.files import file_digest
from paretune.rewards.base import Phrases, RewardKind

_SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+(?:['’-][^\W_{_SPACELESS}]+)*")
_ASCII_WORD = re.compile(r"[A-Za-z0-9]++(?:['-][A-Za-z0-9]++)*+")  # the same in ASCII text, twice as fast
# a stop inside a number or an abbreviation without a space ("3.5", "e.g.") ends no sentence
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*\s+|[。！？]|\n+")
_LONGEST = 400
_QUESTION = ("?", "？", "؟")


def words(text: str) -> list[str]:
    """The words of a text."""
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def count_words(text: str) -> int:
    """How many words a text has."""
    return len(words(text))


def sentences(text: str) -> list[str]:
    """The sentences of a text; pieces without a word are none."""
    return [piece.strip() for piece in _pieces(text) if _WORD.search(piece)]


def _pieces(text: str) -> Iterator[str]:
    """A text cut after its stops and at its line ends; quotes, brackets and white space after a stop are left out."""
    start = 0
    for end in _SENTENCE_END.finditer(text):
        stop = end.start()
        yield text[start : stop if text[stop] == "\n" else stop + 1]
        start = end.end()
    yield text[start:]


def brevity(text: str) -> float:
    """Minus the number of words."""
    return 0.0 - len(words(text))


def length(text: str) -> float:
    """The number of words."""
    return float(len(words(text)))


def readability(text: str) -> float | None:
    """Minus the automated readability index (Smith and Senter 1967): higher is easier; None without a word.

    ARI = 4.71 characters/words + 0.5 words/sentences - 21.43, about the US school grade that reads the text with ease.
    """
    found = words(text)
    if not found:
        return None
    characters = sum(len(word) for word in found)
    return 21.43 - 4.71 * characters / len(found) - 0.5 * len(found) / len(sentences(text))


def question(text: str) -> float:
    """The share of sentences that end in a question mark; 0 without a sentence."""
    found = sentences(text)
    return sum(piece.rstrip("\"'”’)]* ").endswith(_QUESTION) for piece in found) / len(found) if found else 0.0


def positivity(text: str) -> float:
    """VADER's compound sentiment (Hutto and Gilbert 2014) in [-1, 1], averaged over sentences as its authors advise.

    The compound of a whole long text runs into -1 or 1 merely because it is long. 0 without a sentence. A sentence of
    more than 400 words is taken in parts: VADER's time grows with the square of their number.
    """
    found = [part for sentence in sentences(text) for part in _short(sentence)]
    analyser = _vader()
    return sum(float(analyser.polarity_scores(piece)["compound"]) for piece in found) / len(found) if found else 0.0


def _short(sentence: str) -> list[str]:
    """The sentence, in parts of `_LONGEST` words if it has more."""
    found = sentence.split(None, _LONGEST)
    if len(found) <= _LONGEST:
        return [sentence]
    found = sentence.split()
    return [" ".join(found[start : start + _LONGEST]) for start in range(0, len(found), _LONGEST)]


@lru_cache(maxsize=1)
def _vader() -> Any:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError:
        raise InputError("lexical:positivity needs VADER: pip install vaderSentiment") from None
    return SentimentIntensityAnalyzer()


def read_word_list(path: Path | str) -> frozenset[str]:
    """A word list file: one word a line, # starts a comment, case is ignored. Raises `InputError`."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise InputError("no such word list", file=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"is no word list in UTF-8 text ({error})", file=path) from None
    found: set[str] = set()
    for number, line in enumerate(lines, start=1):
        word = line.partition("#")[0].strip().casefold()
        if word and words(word) != [word]:
            raise InputError(f"one word a line is needed, found {word!a}", file=path, line=number)
        found |= {word} if word else set()
    if not found:
        raise InputError("the word list is empty", file=path)
    return frozenset(found)


def word_share(listed: frozenset[str]) -> Callable[[str], float]:
    """The share of a text's words that are in the list; 0 without a word."""

    def share(text: str) -> float:
        found = words(text)
        return sum(word.casefold() in listed for word in found) / len(found) if found else 0.0

    return share


MEASURES: dict[str, tuple[Callable[[str], float | None], str, Phrases]] = {
    "brevity": (
        brevity,
        "how short the answer is (minus its number of words)",
        (
            "Answer in a full paragraph.",
            "Answer in three or four sentences.",
            "Answer in one or two sentences.",
            "Answer in one short sentence.",
            "Answer in five words or fewer.",
        ),
    ),
    "length": (
        length,
        "how long the answer is (its number of words)",
        (
            "Answer in five words or fewer.",
            "Answer in one short sentence.",
            "Answer in one or two sentences.",
            "Answer in three or four sentences.",
            "Answer in a full paragraph.",
        ),
    ),
    "positivity": (
        positivity,
        "how positive its tone is (VADER's sentiment, mean over sentences; needs vaderSentiment)",
        (
            "Use sad and negative words.",
            "Be grave and serious.",
            "Be neutral and factual.",
            "Be friendly and warm.",
            "Be very cheerful and positive.",
        ),
    ),
    "readability": (
        readability,
        "how easily it reads (minus the automated readability index)",
        (
            "Use elaborate words and long, complex sentences.",
            "Use a learned, formal style.",
            "",
            "Use plain words.",
            "Use short, plain words and very short sentences.",
        ),
    ),
    "question": (
        question,
        "how much it asks back (share of sentences that are questions)",
        (
            "Ask no question.",
            "Ask no question unless you must.",
            "",
            "End with a question.",
            "Answer with questions only.",
        ),
    ),
}


class LexicalReward:
    """A measure of each text on its own."""

    can_score_new = True

    def __init__(self, measure: Callable[[str], float | None]) -> None:
        self.measure = measure

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The measure of each completion."""
        return [self.measure(text) for text in completions]


def _check(rest: str) -> None:
    kind, colon, path = rest.partition(":")
    if kind == "words":
        if not path:
            raise InputError("lexical:words needs a word list file: lexical:words:PATH")
    elif colon or kind not in MEASURES:
        raise InputError(f"unknown lexical objective '{rest}'.{did_you_mean(rest, [*MEASURES, 'words:PATH'])}")


def _build(rest: str, allow_remote_code: bool) -> LexicalReward:
    _check(rest)
    if rest.startswith("words:"):
        return LexicalReward(word_share(read_word_list(rest.removeprefix("words:"))))
    if rest == "positivity":
        _vader()  # a missing package is told before any work
    return LexicalReward(MEASURES[rest][0])


def _fingerprint(rest: str) -> str:
    path = Path(rest.removeprefix("words:"))
    return file_digest(path) if rest.startswith("words:") and path.is_file() else ""


KIND = RewardKind(
    prefix="lexical",
    listed=(
        *((f"lexical:{name}", text) for name, (_, text, _) in MEASURES.items()),
        ("lexical:words:PATH", "the share of its words that are in a word list file"),
    ),
    build=_build,
    check=_check,
    phrases=lambda rest: MEASURES[rest][2] if rest in MEASURES else (),
    fingerprint=_fingerprint,
    shares=lambda rest: "",
)
