"""What a training is of, so that what a killed run left is used by the very same training alone, and by the same code.

Two trainings whose identities are equal make the same model, step by step. The code counts: the version of paretune
does not change with every change of a working copy, so a digest of its source stands beside the versions.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paretune.data.rows import Row, rows_digest
from paretune.errors import InputError
from paretune.files import dump_line, file_digest
from paretune.policy.backbone import fingerprint
from paretune.policy.folder import versions
from paretune.profile import Objective
from paretune.training.config import TrainConfig

CODE = ("versions", "source")
"""The parts of an identity that say which code it was, not what was asked of it."""


@functools.cache
def source_digest() -> str:
    """Sixteen hex digits of SHA-256 over the names and bytes of paretune's own Python files."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def code() -> dict[str, Any]:
    """Versions of paretune and of what it computes with, and the digest of its source."""
    return {"versions": versions(), "source": source_digest()}


def identity(
    method: str,
    config: TrainConfig,
    rows: Sequence[Row],
    objectives: Sequence[Objective],
    causal: Any,
    start: Path | str | None = None,
) -> dict[str, Any]:
    """What a training is of, in JSON's types. `start` is the policy folder whose training goes on."""
    folder = Path(start) if start is not None else None
    weights = sorted(folder.rglob("*.safetensors")) if folder is not None else []
    what = {
        "method": method,
        "settings": config.to_dict(),
        "rows": rows_digest(rows),
        "objectives": {each.name: each.to_dict() for each in objectives},
        "base": {"fingerprint": fingerprint(causal), "dtype": str(causal.dtype)},
        "start": {str(each.relative_to(folder)): file_digest(each) for each in weights} if folder is not None else {},
        **code(),
    }
    plain: dict[str, Any] = json.loads(dump_line(what))
    return plain


def differences(before: Any, now: Any, name: str = "") -> list[str]:
    """In words, each value that is not what it was: "settings.lr was 0.001 and is 0.01"."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        keys = [*before, *(key for key in now if key not in before)]
        return [
            each
            for key in keys
            for each in differences(before.get(key), now.get(key), f"{name}.{key}" if name else str(key))
        ]
    if before == now:
        return []
    long = any(isinstance(each, (list, dict)) or len(str(each)) > 40 for each in (before, now))
    return [f"{name} is another" if long else f"{name} was {before} and is {now}"]


def _asked(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if key not in CODE}


def check_same(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    *,
    place: Path,
    what: str,
    force: bool,
    note: Callable[[str], None],
) -> bool:
    """Whether two identities are equal; `before` may hold the header's `format` beside its own.

    Raises `InputError`, which names what differs, unless it is the code alone and `force` says to go on: that is noted,
    and the answer is False. what: "an unfinished training", what lies at `place`.
    """
    kept = {key: value for key, value in before.items() if key != "format"}
    found = differences(kept, now)
    if not found:
        return True
    told = ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
    if differences(_asked(kept), _asked(now)):
        raise InputError(
            f"holds {what} of another kind: {told}. Pass --restart to discard it and begin anew, "
            "choose another output, or have all as it was to go on",
            file=place,
        )
    if not force:
        raise InputError(
            f"holds {what} by other code: {told}. Pass --force to go on all the same, --restart to discard it and "
            "begin anew, or have the code as it was",
            file=place,
        )
    note(f"going on by other code, as --force says: {told}; the result need not be that of either code alone")
    return False
