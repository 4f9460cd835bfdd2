"""A policy: base model + adapter + sensing head + renderer, and what it does: sense, generate, weigh answers.

Saved as one folder without pickle: `policy.json`, `adapter/` (PEFT; `adapters/` where there are several),
`head.safetensors`, tokenizer and chat template, `metrics.json`, `README.md`. `load_policy(folder)` is all it takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from paretune.data.prompts import as_chats
from paretune.data.rows import Messages
from paretune.errors import InputError, check_whole
from paretune.policy.backbone import context_length, decoder_layers
from paretune.policy.engine import Prefilled, Sampling, by_length, decode, prefill, row_seed
from paretune.policy.head import HeadConfig, Prediction, SensingHead, level_index
from paretune.policy.mixture import Voice
from paretune.policy.packed import Branch, Packed, collate, forward
from paretune.policy.renderer import Renderer
from paretune.policy.requests import (
    CONDITIONS,
    Condition,
    Generation,
    Interval,
    Pins,
    Requests,
    Sensed,
    Wanted,
    Weights,
    check_condition,
    pins_of,
    weights_per_prompt,
)
from paretune.policy.several import Parts
from paretune.policy.weights import WeightMap, check_weights, equal_weights
from paretune.profile import Objective, Profile, check_profile
from paretune.progress import NO_PROGRESS, Progress

__all__ = ["CONDITIONS", "Condition", "Generation", "Pins", "Policy", "Sensed", "Weights", "check_condition"]


@dataclass
class Policy:
    """A policy in memory. `causal` is the causal LM (with LoRA layers inside when `peft` holds an adapter)."""

    causal: Any
    tokenizer: Any
    renderer: Renderer
    objectives: list[Objective]
    method: str
    base: str
    head: SensingHead | None = None
    peft: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    weight_map: WeightMap | None = None
    """How it takes preference weights; `None` if it takes none."""
    parts: Parts | None = None
    """Its adapters, where `peft` holds several: requests choose between them by their weights."""

    @property
    def names(self) -> list[str]:
        """Objective names in order."""
        return [objective.name for objective in self.objectives]

    @property
    def has_head(self) -> bool:
        """Can it sense? (`sft` and `dpo` policies cannot.)"""
        return self.head is not None

    @property
    def takes_weights(self) -> bool:
        """Can a request say how much each objective counts?"""
        return self.weight_map is not None

    @property
    def takes_profile(self) -> bool:
        """Can a request say which values are wanted? (A policy conditioned on weights takes them as its profile.)"""
        return self.has_head or (self.weight_map is not None and self.weight_map.rule in ("profile", "direction"))

    @property
    def models_at_inference(self) -> int:
        """How many models' worth of computing one token takes, at most (adapters of weight 0 do not run)."""
        return len(self.parts) if self.parts is not None and self.parts.rule == "mix" else 1

    @property
    def mean_profile(self) -> Profile:
        """Mean of the training targets."""
        stored = self.metadata.get("mean_profile")
        if self.head is not None:
            return dict(zip(self.names, map(float, self.head.target_mean.tolist()), strict=True))
        return check_profile(stored or dict.fromkeys(self.names, 0.5), self.names, partial=False)

    def fuse(self, weights: Mapping[str, float] | None = None) -> Policy:
        """Merge the adapter into the weights: faster generation, same answers up to rounding; cannot be undone.

        Of several adapters there is one model for some `weights` only; under these the policy answers from then on, and
        takes no others. Without weights it stays as it is. Raises `InputError` for weights under which models are mixed
        by the token, and for weights that a policy of one adapter is given.
        """
        if weights is not None:
            if self.parts is None:
                raise InputError("a policy of one adapter is fused without weights")
            blends = self.parts.blends(check_weights(weights, self.names))
            if len(blends) > 1:
                what = f"a policy trained by '{self.method}' mixes {len(blends)} models under these weights"
                raise InputError(f"{what}; it is one model for weights of one objective only")
            self.causal, self.peft, self.parts = self.parts.merge(blends[0]), None, None
            self.weight_map = None
        elif self.peft is not None and self.parts is None:
            self.causal, self.peft = self.peft.merge_and_unload(), None
        return self

    def sense(
        self,
        prompts: Sequence[str | Messages],
        pins: Pins | None = None,
        *,
        batch_size: int = 32,
        progress: Progress = NO_PROGRESS,
    ) -> list[Profile]:
        """The profile that fits each prompt, read from the raw prompt.

        Pinned objectives keep their pins, and the others are sensed given them. Pins are the same for all prompts, or
        one mapping a prompt.
        """
        return [each.profile for each in self.predict(prompts, pins, batch_size=batch_size, progress=progress)]

    def predict(
        self,
        prompts: Sequence[str | Messages],
        pins: Pins | None = None,
        *,
        level: float = 0.8,
        batch_size: int = 32,
        progress: Progress = NO_PROGRESS,
    ) -> list[Sensed]:
        """As `sense`, with an interval for each objective: on prompts like those of training a share `level` (0.5,
        0.8, 0.9 or 0.95) of the target profiles lies inside. A pinned objective's interval is its pin."""
        chats = as_chats(prompts)
        pinned = pins_of(self, pins, len(chats))
        level_index(level)
        check_whole(batch_size, "batch_size", least=1)
        prefixes = self.checked_prefixes(chats, 0)
        out: dict[int, Sensed] = {}
        with progress("sense", len(prompts)) as task:
            for index in by_length([len(ids) for ids in prefixes], batch_size):
                state = self._prefill(chats, prefixes, index)
                out |= zip(index, self._read(state.readout_BH, [pinned(i) for i in index], level), strict=True)
                task.advance(len(index))
        return [out[i] for i in range(len(prompts))]

    @property
    def read_layer(self) -> int | None:
        """The decoder layer after which the head reads; `None`: after the last one and the final norm."""
        config = self.head.config if self.head is not None else HeadConfig()
        return config.layer_of(len(decoder_layers(self.causal)))

    def read_span(self, messages: Messages) -> int:
        """How many of a prefix's last tokens the head reads the mean of."""
        averages = self.head is not None and self.head.config.readout == "mean"
        return self.renderer.user_tokens(messages) if averages else 1

    def _prefill(self, chats: Sequence[Messages], prefixes: Sequence[list[int]], index: Sequence[int]) -> Prefilled:
        """The prefixes in a KV cache, read where the head reads (at the last token where there is none)."""
        rows, pad_id = [prefixes[i] for i in index], self.tokenizer.pad_token_id
        spans = [self.read_span(chats[i]) for i in index]
        return prefill(self.causal, rows, pad_id, layer=self.read_layer, spans=spans)

    @torch.no_grad()
    def _read(self, readout_BH: torch.Tensor, pins: Sequence[Profile], level: float = 0.8) -> list[Sensed]:
        """What the head senses at read-outs [B, H], given pins (empty: none)."""
        if self.head is None:
            raise InputError(f"a policy trained by '{self.method}' has no sensing head, so it cannot sense")
        rows = [[each.get(name, math.nan) for name in self.names] for each in pins]
        pins_BM = torch.tensor(rows, dtype=torch.float32, device=readout_BH.device) if any(pins) else None
        if not bool(torch.isfinite(readout_BH).all()):
            raise InputError("the model's hidden states are not finite; load the policy with dtype float32")
        return self._sensed(self.head.predict(self.head(readout_BH), pins_BM, level=level), pins)

    def _sensed(self, found: Prediction, pins: Sequence[Profile]) -> list[Sensed]:
        """A prediction by objective names; pins exactly as they were given."""
        out = []
        for row, pinned in enumerate(pins):
            interval: Interval | None = None
            if found.low_BM is not None and found.high_BM is not None:
                ends = zip(found.low_BM[row].tolist(), found.high_BM[row].tolist(), strict=True)
                interval = dict(zip(self.names, ends, strict=True)) | {k: (v, v) for k, v in pinned.items()}
            profile = dict(zip(self.names, map(float, found.profile_BM[row].tolist()), strict=True))
            out.append(Sensed(profile | pinned, interval))
        return out

    def checked_prefixes(self, chats: Sequence[Messages], room: int) -> list[list[int]]:
        """The prefix of each conversation, `room` tokens from the context's end; an error names the prompt."""
        out, limit = [], context_length(self.causal)
        for number, messages in enumerate(chats, start=1):
            try:
                prefix = self.renderer.prefix(messages)
            except InputError as error:
                raise InputError(f"prompt {number}: {error.message}") from error
            if len(prefix) + room > limit:
                raise InputError(
                    f"prompt {number}: the prompt has {len(prefix)} tokens and {room} more are wanted, but the model's "
                    f"context is {limit}"
                )
            out.append(prefix)
        return out

    def generate(
        self,
        prompts: Sequence[str | Messages],
        *,
        condition: Wanted | None = None,
        pins: Pins | None = None,
        weights: Weights | None = None,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | Sequence[int] = 0,
        batch_size: int = 64,
        progress: Progress = NO_PROGRESS,
    ) -> list[Generation]:
        """Answers guided by a condition: what is sensed, the mean, all ones, nothing, one profile or one a prompt.

        `None` is `sensed` for a policy that senses and `none` for one that does not.

        Pins (the same for all, or one mapping a prompt) go before the condition's values; under `sensed` the other
        objectives are sensed given the pins. One prefill a prompt: the head reads it and generation continues it.

        `weights` (non-negative, summing to one; the same for all, or one mapping a prompt) take the condition's place,
        by the policy's own rule (`paretune.policy.weights`). A policy of several adapters always answers under weights:
        equal ones where none are given.

        `seed` is one for all, from which each prompt's draws follow by its place, or one a prompt.
        """
        sampling = Sampling(max_new_tokens, temperature, top_p)
        chats = as_chats(prompts)
        seeds = list(seed) if isinstance(seed, Sequence) else [row_seed(seed, "generate", i) for i in range(len(chats))]
        if len(seeds) != len(chats):
            raise InputError(f"{len(seeds)} seeds were given for {len(chats)} prompts")
        asked = Requests(self, len(chats), condition=condition, pins=pins, weights=weights)
        check_whole(batch_size, "batch_size", least=1)
        prefixes = self.checked_prefixes(chats, max_new_tokens)
        out: dict[int, Generation] = {}
        with progress("generate", len(chats)) as task:
            for index in by_length([len(ids) for ids in prefixes], batch_size, apart=asked.blends()):
                out |= zip(index, self._answered(chats, prefixes, index, asked, sampling, seeds), strict=True)
                task.advance(len(index))
        return [out[i] for i in range(len(chats))]

    def _answered(
        self,
        chats: Sequence[Messages],
        prefixes: Sequence[list[int]],
        index: Sequence[int],
        asked: Requests,
        sampling: Sampling,
        seeds: Sequence[int],
    ) -> list[Generation]:
        """Answers to one batch of prompts, those at `index`, which the same adapters answer."""
        voices = self._voices(chats, prefixes, index, asked)
        sensed = self.read_both(voices[0].state.readout_BH, [asked.pinned(i) for i in index])
        used = [asked.profile(i, given) for i, (_, given) in zip(index, sensed, strict=True)]
        suffixes = [self.renderer.suffix(chats[i], own) for i, own in zip(index, used, strict=True)]
        self._check_room(prefixes, suffixes, index, sampling.max_new_tokens)
        decoded = decode(
            self.causal,
            voices,
            suffixes,
            sampling=sampling,
            stop_ids=self.renderer.stop_ids(self.causal.generation_config.eos_token_id),
            pad_id=self.tokenizer.pad_token_id,
            seeds=[seeds[i] for i in index],
        )
        out = []
        for i, (own, _), profile, answer in zip(index, sensed, used, decoded, strict=True):
            text = self.tokenizer.decode(answer.ids, skip_special_tokens=True)
            plain, interval = (own.profile, own.interval) if own is not None else (None, None)
            weighed = self.parts.answering(asked.weights[i]) if self.parts is not None else None
            out.append(Generation(text, profile or None, plain, len(answer.ids), answer.finished, interval, weighed))
        return out

    def profiles(
        self,
        prompts: Sequence[str | Messages],
        *,
        condition: Wanted | None = None,
        pins: Pins | None = None,
        weights: Weights | None = None,
        batch_size: int = 64,
        progress: Progress = NO_PROGRESS,
    ) -> list[Profile]:
        """The profile that `generate` would put into each prompt of the same arguments; {} is none."""
        chats = as_chats(prompts)
        asked = Requests(self, len(chats), condition=condition, pins=pins, weights=weights)
        sensed: Sequence[Sensed | None] = [None] * len(chats)
        if asked.condition == "sensed":
            sensed = self.predict(chats, pins, batch_size=batch_size, progress=progress)
        return [asked.profile(i, each) for i, each in enumerate(sensed)]

    def _voices(
        self, chats: Sequence[Messages], prefixes: Sequence[list[int]], index: Sequence[int], asked: Requests
    ) -> list[Voice]:
        """The prefixes in a KV cache of each of the models that answer."""
        if self.parts is None:
            return [Voice(self._prefill(chats, prefixes, index))]
        out = []
        for blend in self.parts.blends(asked.weights[index[0]]):
            self.parts.use(blend)
            out.append(Voice(self._prefill(chats, prefixes, index), blend.weight, partial(self.parts.use, blend)))
        return out

    def checked_weights(self, weights: Weights, count: int) -> list[Profile]:
        """Weights of each of `count` prompts, checked. Raises `InputError`."""
        return weights_per_prompt(weights, self.names, count)

    def _check_room(
        self, prefixes: Sequence[list[int]], suffixes: Sequence[list[int]], index: Sequence[int], room: int
    ) -> None:
        limit = context_length(self.causal)
        for i, suffix in zip(index, suffixes, strict=True):
            total = len(prefixes[i]) + len(suffix) + room
            if total > limit:
                raise InputError(f"prompt and answer need {total} tokens, but the model's context is {limit}")

    def read_both(
        self, readout_BH: torch.Tensor, pins: Sequence[Profile]
    ) -> list[tuple[Sensed, Sensed] | tuple[None, None]]:
        """What is sensed at read-outs [B, H] from the prompts alone, and given the pins; `None`s without a head."""
        if self.head is None:
            return [(None, None)] * len(pins)
        alone = self._read(readout_BH, [{}] * len(pins))
        return list(zip(alone, self._read(readout_BH, pins) if any(pins) else alone, strict=True))

    def request(self, profile: Mapping[str, float], *, values: bool = False) -> Profile:
        """A profile in the terms that condition this policy: itself, or the weights that stand for its values where
        the policy is conditioned on weights (`paretune.policy.weights.WeightMap.request`)."""
        return self.weight_map.request(profile, values=values) if self.weight_map is not None else dict(profile)

    @property
    def conditioned_on_weights(self) -> bool:
        """Is what it senses and is asked for a vector of weights, which sum to one, in place of values?"""
        return self.weight_map is not None and self.weight_map.rule == "direction"

    @torch.no_grad()
    def features(
        self, prompts: Sequence[str | Messages], *, batch_size: int = 32, progress: Progress = NO_PROGRESS
    ) -> np.ndarray:
        """Read-out hidden states [n, H] of the *base* model (adapter off), float32: what a linear probe starts from."""
        if self.peft is None and self.metadata.get("adapter"):
            raise RuntimeError("a fused policy has no base model to read any more; take features before fuse()")
        chats = as_chats(prompts)
        prefixes = self.checked_prefixes(chats, 0)
        out: list[np.ndarray | None] = [None] * len(prompts)
        with progress("base features", len(prompts)) as task:
            for index in by_length([len(ids) for ids in prefixes], batch_size):
                with self.peft.disable_adapter() if self.peft is not None else nullcontext():
                    state = self._prefill(chats, prefixes, index)
                for i, row in zip(index, state.readout_BH.float().cpu().numpy(), strict=True):
                    out[i] = row
                task.advance(len(index))
        return np.stack([row for row in out if row is not None])

    @torch.no_grad()
    def loglik(
        self,
        prompts: Sequence[str | Messages],
        texts: Sequence[str],
        profiles: Sequence[Profile | None],
        *,
        batch_size: int = 16,
        progress: Progress = NO_PROGRESS,
    ) -> list[float]:
        """Summed log-probability of each text (and the end of its turn) given its prompt and profile.

        Several adapters are taken under equal weights. Raises `InputError` for a policy that mixes models by the token.
        """
        if self.parts is not None:
            blends = self.parts.blends(equal_weights(self.names))
            if len(blends) > 1:
                raise InputError(f"a policy trained by '{self.method}' mixes models: it has no likelihood of one pass")
            self.parts.use(blends[0])
        rows = [
            Packed(
                self.renderer.prefix(prompt),
                [Branch(self.renderer.suffix(prompt, self.request(profile or {})), self.renderer.completion(text))],
            )
            for prompt, text, profile in zip(as_chats(prompts), texts, profiles, strict=True)
        ]
        out = [0.0] * len(rows)
        with progress("likelihood", len(rows)) as task:
            for index in by_length([row.length for row in rows], batch_size):
                batch = collate([rows[i] for i in index], self.tokenizer.pad_token_id).to(self.causal.device)
                for i, value in zip(index, forward(self.causal, batch).logp.tolist(), strict=True):
                    out[i] = value
                task.advance(len(index))
        return out
