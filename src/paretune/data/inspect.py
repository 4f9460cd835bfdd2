"""Look at data before anything is trained on it: what is there, what is missing, what stands there twice.

Rows are streamed. Kept are hashes (8 bytes a prompt and a completion), lengths (4 bytes each) and, for near-duplicates,
the texts of the first `NEAR_LIMIT` distinct prompts.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from paretune.data.adapters.table import Columns
from paretune.data.near import THRESHOLD, near_duplicates, near_overlap, prompt_text
from paretune.data.read import ReadReport, iter_rows
from paretune.data.rows import Row
from paretune.errors import InputError
from paretune.pretrained import from_pretrained
from paretune.progress import NO_PROGRESS, Progress

NEAR_LIMIT = 100_000
"""Distinct prompts of a file that are compared for near-duplicates."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Count = Callable[[list[str]], list[int]]
"""Texts -> the length of each."""


@dataclass
class Scores:
    """The raw scores of one objective; `missing` counts the completions without one."""

    n: int = 0
    missing: int = 0
    mean: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass
class FileReport:
    """What one source holds.

    `completions_per_prompt`, `turns` (messages of a prompt, the system's left out), `prompt_length` and
    `completion_length` are distributions: `min`, `max`, `mean` and quantiles. `repeated_prompts` counts the rows whose
    prompt an earlier row had, `repeated_completions` the completions that their prompt had already, `common_answers`
    those that another prompt had. `near_groups` and `near_prompts`: groups of prompts alike but not equal, and the
    prompts in them, among the `near_compared` distinct ones.
    """

    path: str
    formats: dict[str, int] = field(default_factory=dict)
    rows: int = 0
    bad: int = 0
    bad_reasons: dict[str, int] = field(default_factory=dict)
    prompts: int = 0
    completions: int = 0
    rows_without_completions: int = 0
    completions_per_prompt: dict[str, float] = field(default_factory=dict)
    turns: dict[str, float] = field(default_factory=dict)
    system_prompts: int = 0
    distinct_system_prompts: int = 0
    length_unit: str = "words"
    prompt_length: dict[str, float] = field(default_factory=dict)
    completion_length: dict[str, float] = field(default_factory=dict)
    empty_completions: int = 0
    scores: dict[str, Scores] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    preferences: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] = field(default_factory=dict)
    other_columns: list[str] = field(default_factory=list)
    repeated_prompts: int = 0
    repeated_completions: int = 0
    common_answers: int = 0
    near_groups: int | None = None
    near_prompts: int | None = None
    near_compared: int = 0
    near_examples: list[list[str]] = field(default_factory=list)


@dataclass
class Overlap:
    """Prompts of the `second` source that the `first` has too: `exact` ones, and those `near` to one but not equal."""

    first: str
    second: str
    exact: int
    near: int | None
    examples: list[str]


@dataclass
class InspectReport:
    """One report a source, and what each two sources share."""

    files: list[FileReport]
    overlaps: list[Overlap]


def inspect(
    sources: str | Path | Sequence[str | Path],
    *,
    model: str | None = None,
    near: float = THRESHOLD,
    format: str | None = None,
    columns: Columns | None = None,
    progress: Progress = NO_PROGRESS,
) -> InspectReport:
    """What each source holds, and which prompts two of them share. Bad rows are counted by cause.

    Lengths are in words, or with `model` in tokens of its tokenizer (the texts alone, without a chat template). `near`
    is the likeness from which prompts count as near-duplicates (`near_duplicates`); 0 leaves that out.

    Raises:
        InputError: a source that cannot be read at all or has no good row; a model without a tokenizer.
    """
    paths = [sources] if isinstance(sources, (str, Path)) else list(sources)
    if not paths:
        raise InputError("nothing to inspect; give at least one source")
    if not 0 <= near <= 1:
        raise InputError(f"near must lie in [0, 1], found {near}")
    count = _words if model is None else _tokens(model)
    tallies = []
    for path in paths:
        read = ReadReport()
        tally = _Tally(str(path), count, near > 0, read)
        with progress(f"reading {path}") as bar:
            for row in iter_rows(path, skip_bad_rows=True, report=read, format=format, columns=columns):
                tally.add(row)
                bar.advance()
        tallies.append(tally)
    files = [tally.report(near, "words" if model is None else "tokens") for tally in tallies]
    return InspectReport(files, [_overlap(a, b, near) for a, b in combinations(tallies, 2)])


def _words(texts: list[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def _tokens(model: str) -> Count:
    from transformers import AutoTokenizer

    try:
        tokenizer = from_pretrained(AutoTokenizer, model)
    except Exception as error:  # transformers and huggingface_hub raise kinds of their own
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"has no tokenizer that can be loaded: {first}", file=model) from None

    def count(texts: list[str]) -> list[int]:
        return [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]] if texts else []

    return count


class _Tally:
    """The running numbers of one source."""

    def __init__(self, path: str, count: Count, keep: bool, read: ReadReport) -> None:
        self.path, self._count, self._keep, self._read = path, count, keep, read
        self.prompts: Counter[int] = Counter()  # hash of the prompt -> completions
        self.texts: dict[int, str] = {}
        self._answers: dict[int, int] = {}  # hash of an answer -> hash of the first prompt that had it
        self._pairs: set[int] = set()
        self._systems: set[int] = set()
        self._turns, self._prompt_lengths, self._lengths = array("I"), array("I"), array("I")
        self._sums: dict[str, float] = {}
        self._labels: Counter[str] = Counter()
        self._preferences: Counter[str] = Counter()
        self._wanted: Counter[str] = Counter()
        self._columns: dict[str, None] = {}
        self._file = FileReport(path)

    def add(self, row: Row) -> None:
        """Count one row."""
        file = self._file
        key = hash(tuple((message["role"], message["content"]) for message in row.prompt))
        file.repeated_prompts += key in self.prompts
        self.prompts[key] += len(row.completions)
        if self._keep and key not in self.texts and len(self.texts) < NEAR_LIMIT:
            self.texts[key] = prompt_text(row.prompt)
        if row.prompt[0]["role"] == "system":
            file.system_prompts += 1
            self._systems.add(hash(row.prompt[0]["content"]))
        self._turns.append(sum(message["role"] != "system" for message in row.prompt))
        self._wanted.update(list(row.wanted or ()))
        self._preferences.update({name: len(pairs) for name, pairs in row.preferences.items()})
        self._columns |= dict.fromkeys(row.extra)
        file.rows_without_completions += not row.completions
        said = "\n".join(message["content"] for message in row.prompt)
        prompt_length, *lengths = self._count([said, *(each.text for each in row.completions)])
        self._prompt_lengths.append(prompt_length)
        self._lengths.extend(lengths)
        self._add_answers(row, key)

    def _add_answers(self, row: Row, key: int) -> None:
        file = self._file
        for each in row.completions:
            file.completions += 1
            file.empty_completions += not each.text.strip()
            answer = hash(each.text)
            pair = hash((key, answer))
            file.repeated_completions += pair in self._pairs
            file.common_answers += self._answers.get(answer, key) != key
            self._pairs.add(pair)
            self._answers.setdefault(answer, key)
            self._labels.update([each.label] if each.label else ())
            for name, value in each.scores.items():
                scores = file.scores.setdefault(name, Scores())
                if value is not None:
                    scores.n += 1
                    scores.low = value if scores.low is None else min(scores.low, value)
                    scores.high = value if scores.high is None else max(scores.high, value)
                    self._sums[name] = self._sums.get(name, 0.0) + value

    def report(self, near: float, unit: str) -> FileReport:
        """The numbers, and the near-duplicates among the prompts that were kept."""
        file, read = self._file, self._read
        file.formats, file.rows, file.bad, file.bad_reasons = (
            dict(read.found.formats),
            read.rows,
            read.bad,
            read.reasons,
        )
        file.prompts, file.length_unit = len(self.prompts), unit
        file.distinct_system_prompts = len(self._systems)
        file.completions_per_prompt = distribution(self.prompts.values())
        file.turns = distribution(self._turns)
        file.prompt_length, file.completion_length = distribution(self._prompt_lengths), distribution(self._lengths)
        file.labels, file.preferences, file.wanted = dict(self._labels), dict(self._preferences), dict(self._wanted)
        file.other_columns = list(self._columns)
        for name, scores in file.scores.items():
            scores.missing = file.completions - scores.n
            scores.mean = self._sums[name] / scores.n if scores.n else None
        if near > 0:
            texts = list(self.texts.values())
            groups = near_duplicates(texts, near)
            file.near_groups, file.near_prompts = len(groups), sum(map(len, groups))
            file.near_compared = len(texts)
            file.near_examples = [_where_they_differ(*(texts[at] for at in group[:2])) for group in groups[:3]]
        return file


def _overlap(first: _Tally, second: _Tally, near: float) -> Overlap:
    exact = second.prompts.keys() & first.prompts.keys()
    examples = [text for key, text in second.texts.items() if key in exact]
    if near <= 0:
        return Overlap(first.path, second.path, len(exact), None, [])
    rest = [text for key, text in second.texts.items() if key not in exact]
    alike = near_overlap(rest, list(first.texts.values()), near) if rest and first.texts else []
    examples += [rest[at] for at in alike]
    return Overlap(first.path, second.path, len(exact), len(alike), [_short(text) for text in examples[:3]])


def distribution(values: Iterable[float]) -> dict[str, float]:
    """`min`, `max`, `mean` and quantiles (linear interpolation); nothing for no values."""
    import numpy as np

    numbers = np.fromiter(values, dtype=np.float64)
    if not len(numbers):
        return {}
    ends = {"min": float(numbers.min()), "max": float(numbers.max()), "mean": float(numbers.mean())}
    return ends | {f"{share:g}": float(np.quantile(numbers, share)) for share in QUANTILES}


def _where_they_differ(one: str, other: str) -> list[str]:
    """Two texts that are alike, each from a little before the place where they part."""
    one, other = " ".join(one.split()), " ".join(other.split())
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    start = max(0, same - 40)
    return [_short(("..." if start else "") + text[start:]) for text in (one, other)]


def _short(text: str, limit: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
