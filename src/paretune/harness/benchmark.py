"""`benchmark`: general ability of a policy on lm-eval's tasks, beside that of its base model on the same requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from paretune.bootstrap import Bootstrap
from paretune.errors import InputError, check_whole
from paretune.files import check_parent, installed_version, write_json
from paretune.harness.comparison import headline, measures
from paretune.harness.package import require_lm_eval
from paretune.harness.tasks import load_tasks, run_tasks
from paretune.policy.folder import load_policy, versions
from paretune.policy.policy import Policy, check_condition
from paretune.progress import NO_PROGRESS, Progress

Models = Literal["both", "policy", "base"]
MODELS: tuple[Models, ...] = ("both", "policy", "base")


def benchmark(
    policy: Policy | Path | str,
    tasks: Sequence[str],
    out: Path | str | None = None,
    *,
    models: Models = "both",
    limit: int | None = None,
    num_fewshot: int | None = None,
    include_path: Path | str | None = None,
    chat: bool = False,
    condition: str | Mapping[str, float] | None = None,
    pins: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
    base: str | None = None,
    batch_size: int = 16,
    bootstrap: int = 1000,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> dict[str, Any]:
    """Run lm-eval tasks on a policy and on its base model, and say what alignment cost.

    `limit` takes the first documents of each task. With `chat` requests are conversations, few-shot examples earlier
    turns of them, and the policy is conditioned; the base model sees the same conversations without a profile. Without
    it requests are plain text and nothing is conditioned. Differences are policy - base, with 95% bootstrap intervals
    over documents, each by itself.

    Returns what is written to `out` as JSON: `results` (a list, one entry a measure), `verdict`, `requests` (how many
    were plain, chat, conditioned and truncated from the left, by model), settings and versions.

    Raises `InputError` without lm-eval, for tasks that are unknown or cannot be loaded, for a condition, pins or (of a
    policy with one adapter) weights without `chat`, where they would reach nothing, and for an output that is there.
    """
    require_lm_eval()
    _check(models, limit, num_fewshot, batch_size, bootstrap, seed)
    if out is not None and check_parent(out).exists() and not overwrite:
        raise InputError("exists already; pass --overwrite to replace it", file=out)
    if not chat and (condition is not None or pins):
        raise InputError("a condition and pins reach chat-formatted requests only; pass --chat (chat=True) with them")
    if isinstance(condition, str):
        check_condition(condition)
    if models == "base" and (condition is not None or pins or weights):
        raise InputError("the base model is not conditioned: give no condition, pins or weights with it")
    loaded = load_tasks(tasks, include_path)  # before the model, as all that is cheap to tell
    held = policy if isinstance(policy, Policy) else load_policy(policy, base=base)
    if weights is not None and not chat and held.parts is None:
        raise InputError("this policy's weights reach chat-formatted requests only; pass --chat (chat=True) with them")

    from paretune.harness.lm import PolicyLM

    common: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "progress": progress}
    lms: dict[str, Any] = {}
    if models != "base":
        lms["policy"] = PolicyLM(held, condition=condition, pins=pins, weights=weights, **common)
    if models != "policy":
        lms["base"] = PolicyLM(held, base=True, **common)
    settings: dict[str, Any] = {"limit": limit, "num_fewshot": num_fewshot, "chat": chat, "bootstrap": bootstrap}
    results = {name: run_tasks(lm, loaded, **settings) for name, lm in lms.items()}
    found = measures(results.get("policy"), results.get("base"), loaded, Bootstrap(bootstrap, seed))
    report = {
        "policy": None if isinstance(policy, Policy) else str(policy),
        "method": held.method,
        "base_model": held.base,
        "tasks": list(tasks),
        "settings": settings
        | {"condition": _said(condition, held, chat), "pins": dict(pins or {}), "weights": weights, "seed": seed},
        "requests": {name: lm.counts.to_dict() for name, lm in lms.items()},
        "results": [each.to_dict() for each in found],
        "verdict": headline(found) if len(lms) == 2 else None,
        "task_versions": dict(next(iter(results.values()))["versions"]),
        "few_shot": dict(next(iter(results.values()))["n-shot"]),
        "versions": versions() | {"lm_eval": installed_version("lm_eval")},
    }
    if out is not None:
        write_json(out, report)
    return report


def _said(condition: str | Mapping[str, float] | None, policy: Policy, chat: bool) -> Any:
    """The condition under which the policy answered; `None` where nothing was conditioned."""
    if not chat:
        return None
    return condition if condition is not None else ("sensed" if policy.has_head else "none")


def _check(models: str, limit: int | None, num_fewshot: int | None, batch_size: int, bootstrap: int, seed: int) -> None:
    if models not in MODELS:
        raise InputError(f"models must be one of {', '.join(MODELS)}, found {models!r}")
    if limit is not None:
        check_whole(limit, "limit", least=1)
    if num_fewshot is not None:
        check_whole(num_fewshot, "num_fewshot")
    check_whole(batch_size, "batch_size", least=1)
    check_whole(bootstrap, "bootstrap", least=1)
    check_whole(seed, "seed")
