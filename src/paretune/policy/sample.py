"""`paretune sample`: completions to score, for users who have only prompts.

Samples n completions a prompt from any causal LM, batched and seeded: a completion depends on the seed, its prompt and
its number alone. `vary` samples them under different instructions in turn, so that they span the profile space; the
instruction is recorded with the completion and never becomes part of the row's prompt. A prompt is prefilled once for
all of its completions. Finished prompts are journalled beside the output, so a run that was killed goes on where it
stopped.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paretune.data import ReadReport, check_rows_target, read_rows, stored_objectives, write_rows
from paretune.data.rows import Completion, Messages, Row, prompt_key
from paretune.data.write import keep_objectives
from paretune.errors import InputError, check_whole
from paretune.files import dump_line, writing
from paretune.policy.backbone import context_length, load_backbone
from paretune.policy.engine import Sampling, by_length, decode, prefill, row_seed
from paretune.policy.renderer import Renderer
from paretune.policy.tokenizer import check_vocabulary
from paretune.progress import NO_PROGRESS, Progress


@dataclass(frozen=True)
class SampleResult:
    """What was sampled: counts of all that was written, `tokens` among them; prompts dropped as too long, and taken
    from a journal (`resumed`). `new_tokens` and `seconds` are those of this run alone."""

    rows: int
    completions: int
    tokens: int
    new_tokens: int
    seconds: float
    dropped: int
    resumed: int


def read_instructions(path: Path | str) -> list[str]:
    """Instructions of a `vary` file: one a line, an empty line is "no instruction"."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read as a list of instructions: {error}", file=path) from None
    if not lines:
        raise InputError("is empty; one instruction a line is needed", file=path)
    return [line.strip() for line in lines]


def instructed(messages: Messages, instruction: str) -> Messages:
    """The conversation with an instruction appended to its last user message, as the renderer would put it."""
    if not instruction:
        return messages
    return [*messages[:-1], {**messages[-1], "content": f"{messages[-1]['content']}\n{instruction}"}]


def sample(
    prompts: Path | str,
    model: str,
    out: Path | str,
    *,
    n: int = 4,
    vary: Path | str | None = None,
    max_new_tokens: int = 128,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
    batch_size: int = 32,
    dtype: str = "auto",
    overwrite: bool = False,
    skip_bad_rows: bool = False,
    progress: Progress = NO_PROGRESS,
) -> SampleResult:
    """Sample `n` completions for every prompt of a file into `out`; see the module's text. Raises `InputError`.

    Completions that the rows have already stay, with their scores and the objectives of these beside `out`.
    """
    check_whole(n, "n", least=1)
    check_whole(batch_size, "batch_size", least=1)
    check_whole(seed, "seed")
    sampling = Sampling(max_new_tokens, temperature, top_p)
    out = Path(out)
    check_rows_target(out, overwrite=overwrite, sources=[prompts])
    instructions = read_instructions(vary) if vary is not None else [""]
    read = ReadReport()
    rows = read_rows(prompts, skip_bad_rows=skip_bad_rows, report=read)
    names = dict.fromkeys(name for row in rows for each in row.completions for name in each.scores)
    objectives = stored_objectives(prompts) or []
    settings = {"journal": 2, "model": str(model), "n": n, "instructions": instructions, "seed": seed, "dtype": dtype}
    settings |= {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p}
    settings |= {"prompts": [[row.id, prompt_key(row.prompt)] for row in rows]}
    with writing(out, f"sampling into {out}"), closing(Journal(out, settings)) as journal:
        journal.load()  # one of other settings is told before the model is loaded
        causal, tokenizer = load_backbone(model, dtype=dtype)
        renderer = Renderer(tokenizer, [])
        check_vocabulary(renderer, causal, model)
        sampler = _Sampler(causal, renderer, sampling, n, instructions, seed)
        result = _run(sampler, rows, journal, batch_size, prompts, progress)
        sampled = journal.load()
        completed = ((row, sampled[row.id].completions) for row in rows if row.id in sampled)
        write_rows(out, [replace(row, completions=(*row.completions, *more)) for row, more in completed])
        keep_objectives(out, names, objectives, read.found.minimise)
        journal.remove()
    return result


def _run(
    sampler: _Sampler, rows: Sequence[Row], journal: Journal, batch_size: int, prompts: Path | str, progress: Progress
) -> SampleResult:
    """Sample what the journal does not have yet."""
    done, start = journal.load(), time.monotonic()
    fitting = [row for row in rows if sampler.room(row) >= 0]
    if not fitting:
        limit = context_length(sampler.causal)
        raise InputError(f"no prompt fits the model's context of {limit} tokens", file=prompts)
    # batches are those of the whole run, so that a resumed run computes what an uninterrupted one does, bit for bit
    lengths = [len(sampler.renderer.prefix(row.prompt)) for row in fitting]
    batches = [[fitting[i] for i in index] for index in by_length(lengths, max(1, batch_size // sampler.n))]
    left = [batch for batch in batches if any(row.id not in done for row in batch)]
    with progress("sample", sum(map(len, left))) as task:
        for batch in left:
            journal.append(sampler.run(batch))
            task.advance(len(batch))
    sampled = journal.load()
    return SampleResult(
        rows=len(sampled),
        completions=sum(len(each.completions) for each in sampled.values()),
        tokens=sum(each.tokens for each in sampled.values()),
        new_tokens=sampler.tokens,
        seconds=round(time.monotonic() - start, 3),
        dropped=len(rows) - len(fitting),
        resumed=len(done),
    )


@dataclass(frozen=True)
class Sampled:
    """The completions of one prompt, and how many tokens they took."""

    completions: list[Completion]
    tokens: int


@dataclass
class _Sampler:
    causal: Any
    renderer: Renderer
    sampling: Sampling
    n: int
    instructions: Sequence[str]
    seed: int
    tokens: int = 0

    def instruction(self, number: int) -> str:
        """Completion `number` of a prompt is sampled under this instruction."""
        return self.instructions[number % len(self.instructions)]

    def whole(self, row: Row, instruction: str) -> list[int]:
        """Token ids of a prompt under an instruction, up to where the answer begins."""
        messages = instructed(row.prompt, instruction)
        try:
            return [*self.renderer.prefix(messages), *self.renderer.suffix(messages, None)]
        except InputError as error:
            raise InputError(f"row '{row.id}': {error.message}") from error

    def room(self, row: Row) -> int:
        """Tokens of the context left over by the longest instruction and answer; negative = does not fit."""
        # in tokens: the longest text need not have the most
        used = max(len(self.whole(row, text)) for text in self.instructions[: self.n])
        return context_length(self.causal) - used - self.sampling.max_new_tokens

    def run(self, rows: Sequence[Row]) -> dict[str, Sampled]:
        """Sample all completions of these rows in one batch. What several continue is prefilled once."""
        jobs = [(row, number) for row in rows for number in range(self.n)]
        starts = {(row.id, text): self.whole(row, text) for row in rows for text in self.instructions[: self.n]}
        places = {key: place for place, key in enumerate(starts)}
        pad = self.renderer.tokenizer.pad_token_id
        state = prefill(self.causal, list(starts.values()), pad)
        state.select([places[row.id, self.instruction(number)] for row, number in jobs])
        answers = decode(
            self.causal,
            state,
            [[]] * len(jobs),
            sampling=self.sampling,
            stop_ids=self.renderer.stop_ids(self.causal.generation_config.eos_token_id),
            pad_id=pad,
            seeds=[row_seed(self.seed, prompt_key(row.prompt), number) for row, number in jobs],
        )
        out = {row.id: Sampled([], 0) for row in rows}
        for (row, number), answer in zip(jobs, answers, strict=True):
            self.tokens += len(answer.ids)
            extra: dict[str, Any] = {"finished": answer.finished}
            if self.instruction(number):
                extra["instruction"] = self.instruction(number)
            text = self.renderer.tokenizer.decode(answer.ids, skip_special_tokens=True)
            known = out[row.id]
            more = [*known.completions, Completion(text.strip(), extra=extra)]
            out[row.id] = Sampled(more, known.tokens + len(answer.ids))
        return out


class Journal:
    """Finished prompts of a run, appended line by line beside the output; a broken last line is ignored.

    The first line holds the settings: a run with other settings does not continue it, but says so.
    """

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.path = out.with_name(f".{out.name}.journal")
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        self._file: Any = None

    def load(self) -> dict[str, Sampled]:
        """What was sampled, by row id, from a journal of the same settings."""
        done: dict[str, Sampled] = {}
        if not self.path.exists():
            return done
        # split, not splitlines: an answer may hold U+2028 and its like, which end no record
        for number, line in enumerate(self.path.read_text(encoding="utf-8", errors="replace").split("\n")):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                break  # cut off by a kill: everything after it was never written
            if number == 0:
                if record.get("key") != self.key:
                    raise InputError(
                        "was begun with other settings or prompts; go on with those, or delete this file to start anew",
                        file=self.path,
                    )
                continue
            completions = [
                Completion(each["text"], extra={k: v for k, v in each.items() if k != "text"})
                for each in record["completions"]
            ]
            done[record["id"]] = Sampled(completions, record["tokens"])
        return done

    def append(self, finished: dict[str, Sampled]) -> None:
        """Add finished prompts; on disk when this returns."""
        if self._file is None:
            self._open()
        for name, each in finished.items():
            record = {"id": name, "completions": [one.to_dict() for one in each.completions], "tokens": each.tokens}
            self._file.write((dump_line(record) + "\n").encode("utf-8"))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        known = self.path.read_bytes() if self.path.exists() else b""
        whole = known[: known.rfind(b"\n") + 1]
        self._file = self.path.open("wb")
        self._file.write(whole or (dump_line({"key": self.key}) + "\n").encode())

    def close(self) -> None:
        """Close the file; `load` still reads it."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """The output is written: the journal has done its work."""
        self.path.unlink(missing_ok=True)
