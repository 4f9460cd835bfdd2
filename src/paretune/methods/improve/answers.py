"""A policy's answers under several requests a prompt: written to a file of rows, to be scored.

Drawn by (seed, key, prompt, number), one batch of prompts at a time, and journalled after each, so that a run that was
killed goes on where it stopped and ends in the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from paretune.data import Completion, Row, prompt_key, write_rows
from paretune.methods.improve.goals import Request
from paretune.policy import Policy
from paretune.policy.backbone import context_length
from paretune.policy.engine import Sampling, by_length, row_seed
from paretune.policy.sample import Journal, Sampled
from paretune.profile import Profile
from paretune.progress import Progress

Plan = Callable[[Row, Profile | None], Sequence[Request]]
"""The requests for a prompt, given what is sensed for it (`None` without a head); as many for each."""
ASKED = "sampled"
"""A completion's field: the kind of its request, the profile asked for, and whether the answer gives that away."""


def fitting(policy: Policy, rows: Iterable[Row], max_new_tokens: int) -> list[Row]:
    """The rows whose prompt, under any profile, and answer fit the model's context."""
    limit = context_length(policy.causal) - max_new_tokens
    return [row for row in rows if _longest(policy, row) <= limit]


def _longest(policy: Policy, row: Row) -> int:
    renderer = policy.renderer
    ends = (dict.fromkeys(policy.names, 0.0), dict.fromkeys(policy.names, 1.0), policy.mean_profile)
    # other profiles than these may read a little longer
    return len(renderer.prefix(row.prompt)) + max(len(renderer.suffix(row.prompt, each)) for each in ends) * 5 // 4


def write_answers(
    policy: Policy,
    rows: Sequence[Row],
    plan: Plan,
    out: Path,
    *,
    count: int,
    sampling: Sampling,
    seed: int,
    key: str,
    batch_size: int,
    identity: dict[str, Any],
    progress: Progress,
) -> None:
    """Write the rows with `count` answers each as their completions, in place of those they have.

    `identity` is what else the answers depend on, by which a journal that an earlier run left is known.
    """
    lengths = [len(policy.renderer.prefix(row.prompt)) for row in rows]
    # batches are those of the whole run, so that a resumed run computes what an uninterrupted one does, bit for bit
    batches = [[rows[i] for i in index] for index in by_length(lengths, max(1, batch_size // count))]
    settings = {"answers": 1, "key": key, "seed": seed, "count": count, "batch_size": batch_size, **vars(sampling)}
    settings |= {"prompts": [[row.id, prompt_key(row.prompt)] for row in rows], **identity}
    with closing(Journal(out, settings)) as journal:
        done = journal.load()
        with progress(key.replace(":", " "), len(rows)) as task:
            for batch in batches:
                if any(row.id not in done for row in batch):
                    journal.append(_answered(policy, batch, plan, sampling, seed, key, batch_size))
                task.advance(len(batch))
        done = journal.load()
        write_rows(out, (replace(row, completions=tuple(done[row.id].completions), preferences={}) for row in rows))
        journal.remove()


def _answered(
    policy: Policy, rows: Sequence[Row], plan: Plan, sampling: Sampling, seed: int, key: str, batch_size: int
) -> dict[str, Sampled]:
    """The answers of one batch of prompts."""
    prompts = [row.prompt for row in rows]
    sensed: list[Any] = [None] * len(rows)
    if policy.has_head:
        sensed = [policy.renderer.snapped(each) for each in policy.sense(prompts, batch_size=batch_size)]
    plans = [(row, plan(row, own)) for row, own in zip(rows, sensed, strict=True)]
    asked = [(row, number, each) for row, requests in plans for number, each in enumerate(requests)]
    answers = policy.generate(
        [row.prompt for row, _, _ in asked],
        condition=[each.profile for _, _, each in asked],
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=[row_seed(seed, key, prompt_key(row.prompt), number) for row, number, _ in asked],
        batch_size=max(batch_size, len(asked)),
    )
    out = {row.id: Sampled([], 0) for row in rows}
    for (row, _, request), answer in zip(asked, answers, strict=True):
        told = {"kind": request.kind, "asked": dict(request.profile), "echo": policy.renderer.echoes(answer.text)}
        known = out[row.id]
        more = [*known.completions, Completion(answer.text.strip(), extra={"finished": answer.finished, ASKED: told})]
        out[row.id] = Sampled(more, known.tokens + answer.tokens)
    return out
