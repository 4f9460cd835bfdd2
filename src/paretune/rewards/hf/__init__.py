"""`hf:MODEL[#label|#index|#*][?option=value&...]`: a sequence classifier or reward model of transformers.

What the model reads, by `input`:
- `chat`: the conversation with the answer, in the tokenizer's chat template (the default where it has one);
- `pair`: prompt and answer as the tokenizer's two segments (the default otherwise); a conversation of several messages
  is written out as "User: ..." and "Assistant: ..." paragraphs;
- `hh`: as `pair`, the prompt written as an HH-RLHF transcript ("\\n\\nHuman: ...\\n\\nAssistant:");
- `beaver`: the transcript of the safe-rlhf models ("BEGINNING OF CONVERSATION: USER: ... ASSISTANT:...");
- `answer`: the answer alone (toxicity, sentiment).
Published models that need another input or a head of their own are known (`known.py`).

Further options: `dtype` (float32 on a CPU, the saved type on a GPU), `device`, `tokens` (padded tokens a batch, 8192)
and `max_length` (tokens an input, at most what the model takes).

The raw score is the model's only output, or of several the one named by label or index: its value for a regression, its
log-odds for a classifier (unlike the probability they keep the order of answers near 0 and 1). Objectives that share a
model share its computation. Weights are read from safetensors only and no remote code runs unless allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.rewards.base import RewardKind
from paretune.rewards.encoder import folder_digest, locate_model, read_config
from paretune.rewards.hf.inputs import Inputs
from paretune.rewards.hf.known import output_names
from paretune.rewards.hf.model import load_reward_model
from paretune.rewards.hf.spec import ALL, HfSpec, parse_spec, written


class HfReward:
    """One output of a reward model."""

    can_score_new = True

    def __init__(self, spec: HfSpec, *, allow_remote_code: bool = False) -> None:
        location = locate_model(spec.model)
        self.loaded = load_reward_model(location, spec.dtype, spec.device, allow_remote_code)
        self.index = output_index(self.loaded.network.labels, self.loaded.network.default, spec.label, location)
        limit = min(self.loaded.limit, spec.max_length or self.loaded.limit)
        self.inputs = Inputs(self.loaded.tokenizer, spec.input or self.loaded.input_kind, limit, location)
        self.tokens = spec.tokens

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The output for each answer; None where the model gives no finite number."""
        if not completions:
            return []
        values = self.loaded.outputs(self.inputs, prompts, completions, self.tokens)[:, self.index].tolist()
        return [value if math.isfinite(value) else None for value in values]


def output_index(labels: Sequence[str], default: str | None, label: str, location: str) -> int:
    """Which output a label or index names; a model of several outputs needs one. Raises `InputError`."""
    if label == ALL:
        raise InputError(f"'#*' stands for every output of '{location}'; write *=hf:MODEL#* to have one objective each")
    if not label:
        if default is None:
            raise InputError(
                f"the model '{location}' has {len(labels)} outputs; name one: hf:MODEL#label ({', '.join(labels)})"
            )
        label = default
    if label in labels:
        return list(labels).index(label)
    if label.isdecimal() and int(label) < len(labels):
        return int(label)
    raise InputError(f"the model '{location}' has no output '{label}'.{did_you_mean(label, labels)}")


def _check(rest: str) -> None:
    parse_spec(rest)


def _build(rest: str, allow_remote_code: bool) -> HfReward:
    return HfReward(parse_spec(rest), allow_remote_code=allow_remote_code)


def _expand(rest: str) -> list[tuple[str, str]]:
    """(label, spec) of every output for `MODEL#*`; reads the model's config.json only."""
    spec = parse_spec(rest)
    if spec.label != ALL:
        return [(spec.label or "score", rest)]
    location = locate_model(spec.model)
    labels = output_names(location, read_config(location))
    plain = [label not in (ALL, "") and not set("#?") & set(label) and labels.count(label) == 1 for label in labels]
    return [(label, written(rest, label if plain[at] else str(at))) for at, label in enumerate(labels)]


def _shares(rest: str) -> str:
    return "?".join(parse_spec(rest).loaded)


def _fingerprint(rest: str) -> str:
    return folder_digest(parse_spec(rest).model)


KIND = RewardKind(
    prefix="hf",
    listed=(
        (
            "hf:MODEL[#label]",
            "a classifier or reward model of transformers (#* for every output; ?input=, dtype=, ...)",
        ),
    ),
    build=_build,
    check=_check,
    expand=_expand,
    fingerprint=_fingerprint,
    shares=_shares,
    release=load_reward_model.cache_clear,
)
