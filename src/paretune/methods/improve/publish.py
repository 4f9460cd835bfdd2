"""The policy that rounds end in, written as one folder, and what it says of them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paretune.data import read_rows, write_rows
from paretune.files import OURS, atomic_folder, read_json, write_json, write_text
from paretune.policy.seal import seal

ROUNDS = "rounds.json"
SAMPLES = "rounds"
_OLD_CARD = re.compile(r"\n## Online rounds\n.*?(?=\n## |\Z)", re.DOTALL)


def publish(
    final: Path,
    out: Path,
    account: Mapping[str, Any],
    samples: Mapping[str, Path],
    *,
    overwrite: bool,
) -> None:
    """Write `out`: the policy in `final`, whose data, metrics and card tell of the rounds.

    Beside it lie `rounds.json` (the whole `account`) and `rounds/NAME.jsonl.gz`, the scored samples of each round.
    """
    with atomic_folder(out, overwrite=overwrite) as work:
        shutil.copytree(final, work, dirs_exist_ok=True, ignore=shutil.ignore_patterns(OURS, ROUNDS, SAMPLES))
        described = read_json(work / "policy.json")
        described["data"]["rounds"] = [*described["data"].get("rounds", []), *map(_brief, account["rounds"])]
        write_json(work / "policy.json", described | {"digest": seal(described)})
        metrics = read_json(work / "metrics.json") | {"rounds": len(account["rounds"]), "rounds_kept": account["kept"]}
        write_json(work / "metrics.json", metrics | {f"validation_{key}": account[key] for key in FIGURES})
        card = _OLD_CARD.sub("", (work / "README.md").read_text(encoding="utf-8"))
        write_text(work / "README.md", card.rstrip("\n") + _card(account))
        write_json(work / ROUNDS, dict(account))
        for name, path in samples.items():
            write_rows(work / SAMPLES / f"{name}.jsonl.gz", read_rows(path))


FIGURES = ("hypervolume_before", "hypervolume_after")


def _brief(record: Mapping[str, Any]) -> dict[str, Any]:
    """What policy.json keeps of a round."""
    out = {key: record[key] for key in ("round", "kept", "prompts", "sampled", "rule")}
    gain = record["hypervolume"]
    values = {f"hypervolume_{key}": gain[key]["value"] if gain else None for key in ("before", "after")}
    return out | values | {"mixture_sha256": record.get("mixture_sha256")}


def _card(account: Mapping[str, Any]) -> str:
    lines = ["", "", "## Online rounds", "", account["sentence"], "", "| round | kept | hypervolume before | after |"]
    lines += ["|---|---|---|---|"]
    for record in account["rounds"]:
        brief = _brief(record)
        values = [told(brief[key]) for key in FIGURES]
        lines.append(f"| {record['round']} | {'yes' if record['kept'] else 'no'} | {values[0]} | {values[1]} |")
    return "\n".join([*lines, ""])


def told(value: float | None) -> str:
    """A hypervolume for people."""
    return "-" if value is None else f"{value:.4f}"


def round_sentence(record: Mapping[str, Any]) -> str:
    """A round in a sentence: kept or not, and by what."""
    kept = "kept" if record["kept"] else "not kept"
    gain = record["hypervolume"]
    if not gain or gain["before"]["value"] is None:
        return f"Round {record['round']} was {kept}: {record['why']}."
    difference = gain["difference"]
    interval = ""
    if difference["low"] is not None:
        interval = f", 95% interval [{difference['low']:+.4f}, {difference['high']:+.4f}]"
    prompts = f"{gain['prompts']} prompt{'s' * (gain['prompts'] != 1)}"
    return (
        f"Round {record['round']} was {kept}: {record['why']}, {told(gain['before']['value'])} before and "
        f"{told(gain['after']['value'])} after ({difference['value']:+.4f}{interval}, {prompts})."
    )


def last_sentence(records: Sequence[Mapping[str, Any]], start: str, figures: Mapping[str, float | None]) -> str:
    """What came of all rounds, in a sentence."""
    kept = sum(bool(each["kept"]) for each in records)
    alone = len(records) == 1
    if not kept:
        none = "The round did not raise" if alone else f"None of the {len(records)} rounds raised"
        return f"{none} the validation hypervolume, so this is the policy {start} as it was."
    before, after = (told(figures[key]) for key in FIGURES)
    some = "The round was" if alone else f"{kept} of the {len(records)} rounds {'was' if kept == 1 else 'were'}"
    return f"{some} kept: the validation hypervolume of {start} was {before} and is {after}."
