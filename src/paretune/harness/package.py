"""lm-evaluation-harness, which `paretune benchmark` needs and the rest of the package does not."""

from __future__ import annotations

from importlib.util import find_spec

from paretune.errors import InputError


def require_lm_eval() -> None:
    """`InputError` that names the extra where lm-eval is not installed."""
    if find_spec("lm_eval") is None:
        raise InputError('benchmarks need the package lm_eval; run: pip install "paretune[lm-eval]"')
