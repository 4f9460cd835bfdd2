"""`paretune improve`: a policy in, a policy out that was trained on its own best answers, if that made it better."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paretune.data.rows import rows_digest
from paretune.files import check_target_folder, dump_line, file_digest, writing
from paretune.methods.improve.keep import Keep
from paretune.methods.improve.options import ImproveOptions
from paretune.methods.improve.publish import last_sentence, publish, round_sentence
from paretune.methods.improve.rounds import SCORED, Rounds
from paretune.methods.improve.source import Source, load_source
from paretune.methods.improve.work import Work
from paretune.progress import NO_PROGRESS, Progress
from paretune.tracking import STATE, check_trackers, reporting
from paretune.training.provenance import code


@dataclass(frozen=True)
class ImproveResult:
    """What came of the rounds: the new policy's folder, how many were `kept`, the account of each, and in words why
    they ended; `sentence` sums up. Hypervolumes are those of the validation front, `None` where undefined."""

    folder: str
    kept: int
    hypervolume_before: float | None
    hypervolume_after: float | None
    rounds: list[dict[str, Any]]
    masked: dict[str, str]
    stopped: str
    sentence: str
    seconds: float


def improve(
    policy: Path | str,
    data: Path | str,
    out: Path | str,
    *,
    rounds: int = 2,
    n: int = 4,
    prompts_per_round: int | None = None,
    keep: Keep = "pareto",
    originals: float = 0.5,
    delta: float = 0.2,
    patience: int = 1,
    validation_prompts: int = 128,
    settings: Sequence[str] = (),
    max_new_tokens: int = 128,
    temperature: float = 0.8,
    top_p: float = 0.95,
    seed: int = 0,
    batch_size: int = 32,
    skip_bad_rows: bool = False,
    overwrite: bool = False,
    restart: bool = False,
    force: bool = False,
    report_to: str | Sequence[str] = (),
    progress: Progress = NO_PROGRESS,
    note: Callable[[str], None] | None = None,
) -> ImproveResult:
    """Train the policy folder `policy` on in online rounds and write the result to the folder `out`.

    A round samples `n` answers for each of `prompts_per_round` training prompts of `data` (what the policy was trained
    on) at what is sensed, `delta` above it and at the frontier; scores them by the policy's own rewards; keeps
    completions by the rule `keep`; mixes them with a share `originals` of the data's own; and trains on from them, with
    the policy's settings but for `settings`. It is kept only if the hypervolume of the validation front (mean scores of
    greedy answers over a sweep of requests, reference point 0) rose; `patience` rounds in a row without a gain end it.
    Where none is kept, `out` is the policy as it was, with the account of what was tried.

    An interrupted call goes on where it stopped when it is repeated, and ends in the same policy; `restart` discards
    what there is, `force` goes on though other code wrote it. `note` is told in words what a person should know on the
    way.

    `report_to` names trackers that the numbers of every round are passed to (see `paretune.tracking`): one run for all.

    Raises:
        InputError: options out of range; a policy that takes no profile, whose training cannot go on, none of whose
            rewards can score a new answer, or one of whose rewards is gone; other data than the policy's; data without
            a validation part; an `out` that exists (unless `overwrite`); unfinished rounds of another call; a reward
            that fails; a full disk. What was done until then is kept.
    """
    began = time.monotonic()
    options = ImproveOptions(
        rounds=rounds,
        n=n,
        prompts_per_round=prompts_per_round,
        keep=keep,
        originals=originals,
        delta=delta,
        patience=patience,
        validation_prompts=validation_prompts,
        settings=tuple(settings),
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
    )
    target = check_target_folder(out, overwrite=overwrite)
    trackers = check_trackers(report_to)
    source = load_source(policy, data, options, skip_bad_rows=skip_bad_rows)
    tell = note or (lambda text: None)
    with writing(target, f"improving into {out}"):
        check_target_folder(out, overwrite=overwrite)  # another run may have ended between the check and the lock
        work = Work(target, _identity(source, options), restart=restart, force=force, note=tell)
        told = {"method": "improve", "policy": str(policy), "data": str(data), "settings": options.to_dict()}
        with work.kept(), reporting(trackers, target, work.folder / STATE, told, note) as report:
            steps = Rounds(source, options, work, report=report, force=force, progress=progress, note=tell)
            account = _account(steps, tell, str(policy), str(data))
            samples = {
                f"round-{each['round']}": work.part(f"round-{each['round']}") / SCORED for each in account["rounds"]
            }
            publish(steps.current, target, account, samples, overwrite=overwrite)
        work.remove()
    words = {key: account[key] for key in ("kept", "rounds", "masked", "stopped", "sentence")}
    figures = {key: account[key] for key in ("hypervolume_before", "hypervolume_after")}
    return ImproveResult(folder=str(target), **words, **figures, seconds=round(time.monotonic() - began, 3))


def _account(steps: Rounds, tell: Callable[[str], None], policy: str, data: str) -> dict[str, Any]:
    """Run the rounds; all that rounds.json says of them."""
    source, options = steps.source, steps.options
    start = steps.start()
    figures = {"hypervolume_before": start["hypervolume"]["value"], "hypervolume_after": start["hypervolume"]["value"]}
    records: list[dict[str, Any]] = []
    without_gain = 0
    while len(records) < options.rounds and without_gain < options.patience:
        record = steps.run(len(records) + 1)
        records.append(record)
        without_gain = 0 if record["kept"] else without_gain + 1
        if record["kept"]:
            figures["hypervolume_after"] = record["hypervolume"]["after"]["value"]
        tell(round_sentence(record))
    stopped = "all rounds are done"
    if without_gain >= options.patience and len(records) < options.rounds:
        stopped = f"{without_gain} {'round' if without_gain == 1 else 'rounds in a row'} without a gain"
    return {
        "format": 1,
        "policy": policy,
        "data": data,
        "settings": options.to_dict(),
        "objectives": [each.name for each in source.scored],
        "masked": source.masked,
        "dropped": source.dropped,
        "start": start,
        "rounds": records,
        "kept": sum(bool(each["kept"]) for each in records),
        **figures,
        "stopped": stopped,
        "sentence": last_sentence(records, policy, figures),
    }


def _identity(source: Source, options: ImproveOptions) -> dict[str, Any]:
    """What the rounds are of, in JSON's types: two calls whose identities are equal end in the same policy."""
    files = [source.folder / "policy.json", *sorted(source.folder.rglob("*.safetensors"))]
    what = {
        "policy": {str(each.relative_to(source.folder)): file_digest(each) for each in files},
        "rows": rows_digest([*source.split.train, *source.split.validation, *source.split.test]),
        "options": options.to_dict(),
        **code(),
    }
    plain: dict[str, Any] = json.loads(dump_line(what))
    return plain
