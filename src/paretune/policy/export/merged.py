"""One plain transformers model of a policy: the adapter in its weights, its tokenizer and how its answers end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paretune.errors import InputError
from paretune.policy.policy import Policy


def merge(policy: Policy, weights: Mapping[str, float] | None) -> Policy:
    """The policy with its adapter, or its adapters by `weights`, in the model's weights; the policy given is spent.

    Raises `InputError` where there is no one such model: several adapters without weights, or models that are mixed
    by the token.
    """
    if policy.parts is not None and weights is None:
        raise InputError(
            f"a policy trained by '{policy.method}' has {len(policy.parts)} adapters, which are one model for some "
            "weights only; say which with --weights (weights= in Python)"
        )
    return policy.fuse(weights)


def save_merged(policy: Policy, folder: Path) -> None:
    """Write a merged policy's model, tokenizer, chat template and generation config.

    The generation config names every token that ends an answer, so that others stop where the policy does.
    Raises `InputError` for a policy whose adapter is still beside the weights (see `merge`): its layers have other
    names, and whoever loads such a folder would get random ones in their place.
    """
    if policy.peft is not None or policy.parts is not None:
        raise InputError("the policy's adapter is not merged yet; call `merge`, or `Policy.fuse`, first")
    settings = policy.causal.generation_config
    settings.eos_token_id = sorted(policy.renderer.stop_ids(settings.eos_token_id))
    settings.pad_token_id = policy.tokenizer.pad_token_id
    try:
        settings.validate(strict=True)
    except ValueError:  # a temperature where nothing is sampled, say: published so, ignored, and refused when saved
        for name in ("temperature", "top_p", "top_k"):
            setattr(settings, name, None)
    policy.causal.save_pretrained(str(folder), safe_serialization=True)
    policy.tokenizer.save_pretrained(str(folder))
