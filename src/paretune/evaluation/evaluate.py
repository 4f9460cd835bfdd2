"""`paretune evaluate`: run the deciding ablation on policies, and write the numbers, the report and every answer.

Each policy answers its unseen test prompts under every condition and every point of a sweep; answers are scored,
compared with the target profile and with the chosen completion, and the verdict is said in words; several policies are
compared. The output folder appears whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from paretune.bootstrap import Bootstrap
from paretune.data import read_rows
from paretune.errors import InputError, check_whole
from paretune.evaluation.card import write_into
from paretune.evaluation.compare import compare
from paretune.evaluation.conditions import choose_conditions
from paretune.evaluation.control import PROMPTS
from paretune.evaluation.journal import Journal, header
from paretune.evaluation.output import command, versions, write
from paretune.evaluation.plan import make_plan
from paretune.evaluation.result import Evaluated, Settings
from paretune.evaluation.run import Run
from paretune.files import check_target_folder, writing
from paretune.profile import Objective
from paretune.progress import NO_PROGRESS, Progress

FORMAT = 1


def evaluate(
    policies: Sequence[Path | str],
    data: Path | str,
    out: Path | str,
    *,
    conditions: Sequence[str] | None = None,
    objectives: Sequence[str | Objective] | None = None,
    max_prompts: int | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    split: str = "test",
    bootstrap: int = 1000,
    control_prompts: int = PROMPTS,
    skip_bad_rows: bool = False,
    allow_overlap: bool = False,
    weights: str | Mapping[str, float] | Sequence[str | Mapping[str, float]] | None = None,
    profiles: str | Path | Mapping[str, float] | Sequence[str | Path | Mapping[str, float]] | None = None,
    reference: Mapping[str, float] | None = None,
    judge_with: Sequence[str] | None = None,
    include_base: bool = False,
    card: bool = False,
) -> dict[str, Any]:
    """Evaluate policy folders on the rows of `data` into the folder `out`; returns what metrics.json holds.

    `objectives` keeps some of a policy's objectives by name, or measures one by another reward (`name=spec`).
    `control_prompts` is how many prompts the sweeps of requested values use (0: no sweep); bad rows of the data raise
    unless `skip_bad_rows`. Test prompts that a policy was trained on, or nearly, raise unless `allow_overlap`, which
    leaves those rows out and counts them; with several policies so do those that another one was trained on. Scores are
    normalised by each policy's own scales; intervals are 95% bootstrap intervals over prompts, from `bootstrap`
    resamples.

    Sweeps: `weights` are `"grid"` (a lattice over the simplex), `"helpful=.5,brevity=.5"` or a mapping, or several of
    these; `profiles` are `"brevity=.9"`, a mapping or a .json file of profiles, or several. A policy that cannot take
    them is told of in its notes. `reference` moves the hypervolume's reference point, on the normalised scale.
    `judge_with` scores the natural answers by rewards that training did not use (`name=spec`), beside the base model's;
    `include_base` adds the base model to the comparison. `card` writes the figures into each policy's README.md too.

    Answers are kept beside `out` as they are made (`paretune.evaluation.journal`), and a run that was ended goes on
    from them when it is started again; `overwrite` discards those of another run.

    Raises:
        InputError: no policy folder, data without two scored completions a prompt, fewer than two usable prompts,
            prompts of training among the test prompts, an unknown condition, objective or split, weights that are
            negative or do not sum to one, a judge that training used, policies with no objective or prompt in common,
            an output folder that may not be replaced, or the answers of another unfinished run beside it.
    """
    folders = [Path(folder) for folder in _several(policies, "policies") or ()]
    _check_numbers(seed, bootstrap, control_prompts, max_prompts, max_new_tokens)
    _check(folders, data, out, overwrite)
    settings = Settings(
        conditions=_several(conditions, "conditions"),
        objectives=_several(objectives, "objectives"),
        max_prompts=max_prompts,
        max_new_tokens=max_new_tokens,
        seed=seed,
        split=split,
        bootstrap=bootstrap,
        control_prompts=control_prompts,
        allow_overlap=allow_overlap,
        weights=_several(weights, "weights"),
        profiles=_several(profiles, "profiles"),
        reference=reference,
        judge_with=_several(judge_with, "judge_with"),
        include_base=include_base,
        card=card,
    )
    choose_conditions(settings.conditions, has_head=True)
    rows = read_rows(data, skip_bad_rows=skip_bad_rows)
    named = dict(zip(policy_names(folders), folders, strict=True))
    plan = make_plan(named, data, rows, settings)
    target = check_target_folder(out, overwrite=overwrite)
    begun = header(named, rows, max_new_tokens=max_new_tokens, seed=seed, versions=versions())
    with (
        writing(target, f"evaluating into {out}"),
        closing(Journal(target, begun, discard=overwrite)) as journal,
    ):
        run = Run(data, rows, settings, plan, progress or NO_PROGRESS, Bootstrap(bootstrap, seed), journal)
        done = {name: run.policy(name, folder) for name, folder in named.items()}
        done |= _named_bases(list(run.bases.values()), done)
        metrics = {
            "format": FORMAT,
            "data": str(data),
            "settings": settings.to_dict(),
            "versions": versions(),
            "command": command(folders, data, out, settings),
            "kept_answers": journal.taken,
            "policies": {name: each.metrics for name, each in done.items()},
            "comparison": compare(done, run.bootstrap, plan.reference, data) if len(done) > 1 else None,
        }
        cards = write(metrics, done, out, overwrite)
        journal.remove()
    for name, folder in named.items() if card else ():
        write_into(folder, cards[name])
    return metrics


def _several(asked: Any, what: str) -> tuple[Any, ...] | None:
    """One wish or several of them; none is None."""
    if isinstance(asked, (str, Path, Mapping, Objective)):
        return (asked,)
    if asked is not None and not isinstance(asked, Iterable):
        raise InputError(f"{what} are one or a list of them, found {asked!r:.100}")
    return tuple(asked or ()) or None


def _named_bases(bases: Sequence[Evaluated], done: Mapping[str, Evaluated]) -> dict[str, Evaluated]:
    """The base models under names that no policy has: `base`, or with the model's own name where there are several."""
    out: dict[str, Evaluated] = {}
    for each in bases:
        name = "base" if len(bases) == 1 else f"base {Path(each.metrics['base']).name}"
        while name in done or name in out:
            name += " (model)"
        out[name] = each
    return out


def _check_numbers(
    seed: int, bootstrap: int, control_prompts: int, max_prompts: int | None, max_new_tokens: int | None
) -> None:
    check_whole(seed, "seed")
    check_whole(bootstrap, "bootstrap", least=1)
    check_whole(control_prompts, "control_prompts")
    if max_prompts is not None:
        check_whole(max_prompts, "max_prompts", least=2)
    if max_new_tokens is not None:
        check_whole(max_new_tokens, "max_new_tokens", least=1)


def _check(folders: Sequence[Path], data: Path | str, out: Path | str, overwrite: bool) -> None:
    """What can be refused before a model is loaded."""
    if not folders:
        raise InputError("no policy is given; name at least one policy folder")
    for folder in folders:
        if not (folder / "policy.json").is_file():
            raise InputError("is no policy folder (it has no policy.json)", file=folder)
    target = Path(out).resolve()
    for used in [*folders, Path(data)]:
        if target == used.resolve() or target in used.resolve().parents:
            raise InputError(f"holds {used}, which is evaluated; choose another output folder", file=out)
    for above in (target, *target.parents):
        if (above / "policy.json").exists():
            where = "is" if above == target else "lies in"
            raise InputError(f"{where} a policy folder; choose another output folder", file=out)
    check_target_folder(out, overwrite=overwrite)


def policy_names(folders: Sequence[Path]) -> list[str]:
    """A short distinct name for each folder: its own, else with its parents', else with a number."""
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = ["/".join(folder.resolve().parts[-2:]) for folder in folders]
    return [name if names.count(name) == 1 else f"{name} ({index + 1})" for index, name in enumerate(names)]
