"""`trained:FOLDER[#objective][?base=MODEL]`: an objective of a reward model that `paretune reward train` made.

The raw score is the model's value in the objective's unit, which reward.json says: the rating's own unit, a latent
ordinal logit, or a Bradley-Terry logit. An objective that was minimised in training is one of which less is better,
with or without a `-` before its name. With one objective its name may be left out; `*=trained:FOLDER#*` stands for all
of them. `?base=` says where the base model is, if not where it was in training. Objectives of one folder share one
pass over the answers.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretune.data.rows import Messages, prompt_key
from paretune.errors import InputError, did_you_mean
from paretune.reward_model.description import read_description, read_outputs
from paretune.rewards.base import RewardKind

if TYPE_CHECKING:
    from paretune.reward_model.model import RewardModel

WEIGHTS = ("reward.json", "head.safetensors", "adapter/adapter_model.safetensors")
"""The files that the scores depend on."""


class SharedModel:
    """A loaded model and the scores of the last batch, which the objectives of the folder ask for one after another."""

    def __init__(self, model: RewardModel) -> None:
        self.model = model
        self._key = ""
        self._scores: list[dict[str, float]] = []

    def score(self, prompts: list[Messages], texts: list[str]) -> list[dict[str, float]]:
        """Values of the answers, computed once for the same batch."""
        digest = hashlib.sha256()
        for prompt, text in zip(prompts, texts, strict=True):
            digest.update(f"{prompt_key(prompt)}{len(text)}:{text}".encode("utf-8", "surrogatepass"))
        if digest.hexdigest() != self._key:
            self._scores = self.model.score(prompts, texts)
            self._key = digest.hexdigest()
        return self._scores


@lru_cache(maxsize=2)
def _load(folder: str, base: str, state: str) -> SharedModel:
    """The folder's model, once a process; `state` makes a folder that was trained anew another one."""
    from paretune.reward_model.folder import load_for_scoring

    return SharedModel(load_for_scoring(folder, base or None))


class TrainedReward:
    """One objective of a reward model."""

    can_score_new = True

    def __init__(self, folder: str, objective: str, base: str) -> None:
        self.shared = _load(folder, base, fingerprint(folder))
        self.objective = _output_of(folder, objective, self.shared.model.names)

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The objective's value for each answer."""
        return [values[self.objective] for values in self.shared.score(prompts, completions)]


def _output_of(folder: str, objective: str, names: list[str]) -> str:
    if objective == "*":
        raise InputError("#* stands for all objectives of a model: write *=trained:FOLDER#* or NAME.*=trained:FOLDER#*")
    if not objective:
        if len(names) > 1:
            raise InputError(
                f"the reward model '{folder}' measures {len(names)} objectives; name one: trained:FOLDER#objective "
                f"({', '.join(names)})"
            )
        return names[0]
    if objective not in names:
        raise InputError(f"the reward model '{folder}' has no objective '{objective}'.{did_you_mean(objective, names)}")
    return objective


def _split(rest: str) -> tuple[str, str, str]:
    """FOLDER, objective, base."""
    where, question, base = rest.partition("?base=")
    folder, _, objective = where.partition("#")
    if not folder:
        raise InputError("trained: needs the folder of a reward model: trained:FOLDER[#objective]")
    if question and not base:
        raise InputError(f"?base= needs a model folder or hub id in 'trained:{rest}'")
    return str(Path(folder).expanduser().resolve()), objective, base


def _expand(rest: str) -> list[tuple[str, str]]:
    folder, objective, base = _split(rest)
    if objective not in ("*", ""):
        raise InputError(f"'trained:{rest}' names one objective; trained:FOLDER#* stands for all of them")
    tail = f"?base={base}" if base else ""
    objectives, *_ = read_outputs(read_description(Path(folder)))
    return [(each.name, f"{folder}#{each.name}{tail}") for each in objectives]


def _minimised(rest: str) -> bool:
    """Does reward.json say that less is better? A folder that cannot be read is told of where it is loaded."""
    folder, objective, _ = _split(rest)
    try:
        objectives, *_ = read_outputs(read_description(Path(folder)))
    except InputError:
        return False
    return any(each.direction == "minimise" for each in objectives if objective in ("", each.name))


def fingerprint(rest: str) -> str:
    """A hash of the files that the scores depend on; "" for a folder that is not there."""
    folder, digest = Path(_split(rest)[0]), hashlib.sha256()
    for name in WEIGHTS:
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def _check(rest: str) -> None:
    _split(rest)


def _build(rest: str, allow_remote_code: bool) -> TrainedReward:
    return TrainedReward(*_split(rest))


KIND = RewardKind(
    prefix="trained",
    listed=(("trained:FOLDER[#objective]", "a reward model that `paretune reward train` made"),),
    build=_build,
    check=_check,
    expand=_expand,
    minimised=_minimised,
    fingerprint=fingerprint,
    shares=lambda rest: "|".join(_split(rest)[::2]),
    release=_load.cache_clear,
)
