"""The seal of a description: a policy.json or reward.json that was edited says so when it is loaded.

Objectives in another order, another style, a scale turned round or a head read elsewhere would load and go on without a
word, and the model would sense, answer or score by something it was not trained on. So each field's digest is saved
beside it. This guards against slips, not against malice: a folder from before there were seals has none, and loads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paretune.errors import InputError

FREE = ("format", "base_model", "versions", "digest")
"""Fields that are not sealed: the base model may lie elsewhere one day (its fingerprint is sealed)."""


def digest(value: Any) -> str:
    """A short stable digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def seal(described: Mapping[str, Any]) -> dict[str, str]:
    """The digest of every field but the free ones."""
    return {key: digest(value) for key, value in described.items() if key not in FREE}


def check_seal(described: Mapping[str, Any], file: Path) -> None:
    """Raises `InputError` that names the field which is not what it was when `file` was saved."""
    saved = described.get("digest")
    if saved is None:
        return
    if not isinstance(saved, Mapping):
        raise InputError(f"must hold a digest for each field, found {saved!r:.100}", file=file, field="digest")
    found = seal(described)
    for key in [*found, *(key for key in saved if key not in found)]:
        if found.get(key) != saved.get(key):
            what = "is gone" if key not in found else "was added" if key not in saved else "is not what it was"
            raise InputError(
                f"{what}: the model was trained with it as it was saved. Restore the file, or copy the whole folder "
                "anew; to have it otherwise, train again",
                file=file,
                field=key,
            )
