"""What training says of itself on the validation part: how well the head senses, and whether the profile is obeyed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paretune.methods.examples import Example
from paretune.policy import Policy
from paretune.policy.engine import by_length
from paretune.policy.packed import Packed, collate, forward
from paretune.progress import NO_PROGRESS, Progress

MOST = 128
"""At most this many validation prompts are looked at: the full account is the evaluation's."""
FEWEST = 20
"""An R2 of fewer validation prompts says nothing: one odd prompt moves it from 0.5 to below 0."""


def validate(policy: Policy, examples: Sequence[Example], *, progress: Progress = NO_PROGRESS) -> dict[str, Any]:
    """`sense_mae_NAME` per objective where there is a head, and `control_accuracy_validation` where values condition
    the policy; {} without examples.

    Also `sense_r2_NAME`, where at least `FEWEST` prompts have a target for NAME; where none has so many, `sense_r2`
    says so in words.

    Control accuracy: how often log p(y | x, own profile) > log p(y | x, the other completion's profile), over the
    chosen and the rejected completion of each prompt; 0.5 is no control at all.
    """
    looked = list(examples)[:MOST]
    if not looked:
        return {}
    values = policy.takes_profile and not policy.conditioned_on_weights
    return _sensing(policy, looked, progress) | (_control(policy, looked, progress) if values else {})


def _sensing(policy: Policy, looked: Sequence[Example], progress: Progress) -> dict[str, Any]:
    """MAE and R2 of what the head senses; {} without one."""
    if policy.head is None:
        return {}
    sensed = policy.sense([each.row.prompt for each in looked], progress=progress)
    out: dict[str, Any] = {}
    for name in policy.names:
        pairs = [
            (guess[name], each.target[name]) for guess, each in zip(sensed, looked, strict=True) if name in each.target
        ]
        if not pairs:
            continue
        mean = policy.mean_profile[name]
        squared = sum((guess - truth) ** 2 for guess, truth in pairs)
        around = sum((mean - truth) ** 2 for _, truth in pairs)
        out[f"sense_mae_{name}"] = sum(abs(guess - truth) for guess, truth in pairs) / len(pairs)
        if around > 0 and len(pairs) >= FEWEST:
            out[f"sense_r2_{name}"] = 1 - squared / around
    if not any(key.startswith("sense_r2_") for key in out):
        out["sense_r2"] = f"not told: it takes {FEWEST} validation prompts with targets that differ"
    return out


def _control(policy: Policy, examples: Sequence[Example], progress: Progress) -> dict[str, float]:
    told = [
        each
        for each in examples
        if policy.renderer.profile_text(each.answers[0].profile)
        != policy.renderer.profile_text(each.answers[1].profile)
    ]
    if not told:
        return {}
    rows = []
    for each in told:
        one, two = each.answers[0].profile, each.answers[1].profile
        branches = [each.branch(0, one), each.branch(0, two), each.branch(1, two), each.branch(1, one)]
        rows.append(Packed(each.prefix, branches))
    right = 0.0
    import torch

    with progress("control", len(rows)) as task, torch.no_grad():
        for index in by_length([row.length for row in rows], 4):
            batch = collate([rows[i] for i in index], policy.tokenizer.pad_token_id).to(policy.causal.device)
            logp_R4 = forward(policy.causal, batch).logp.view(-1, 4)
            right += float((logp_R4[:, 0] > logp_R4[:, 1]).sum() + (logp_R4[:, 2] > logp_R4[:, 3]).sum())
            task.advance(len(index))
    return {"control_accuracy_validation": right / (2 * len(rows))}
