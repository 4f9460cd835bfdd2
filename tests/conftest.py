"""Fixtures that all rooms' tests share: tiny models on disk and a small file of scored rows."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tiny_models import KINDS, make_tiny

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may reach for a hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")

TOPICS = ["tea", "rain", "bees", "chess", "bread", "stars", "rivers", "clocks", "maps", "drums", "snow", "owls"]
QUESTIONS = ["What is {}?", "Explain at length how {} came to be."]


def pytest_configure() -> None:
    """A test run in the background of a shell inherits an ignored SIGINT, and so would the processes it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the session's tiny models."""
    return tmp_path_factory.mktemp("tiny")


def _tiny(folder: Path, kind: str) -> Path:
    target = folder / kind
    return target if target.exists() else make_tiny(target, kind)


@pytest.fixture(scope="session")
def tiny_llama(tiny_folder: Path) -> Path:
    """A Llama: BOS in the template and by the tokenizer, no pad token."""
    return _tiny(tiny_folder, "llama")


@pytest.fixture(scope="session")
def tiny_qwen(tiny_folder: Path) -> Path:
    """A Qwen3: ChatML, no BOS, a pad token of its own, tied embeddings."""
    return _tiny(tiny_folder, "qwen")


@pytest.fixture(scope="session")
def tiny_gpt2(tiny_folder: Path) -> Path:
    """A GPT-2: no chat template, no pad token, learnt positions."""
    return _tiny(tiny_folder, "gpt2")


@pytest.fixture(scope="session", params=KINDS)
def tiny_model(request: pytest.FixtureRequest, tiny_folder: Path) -> Path:
    """Each tiny model in turn."""
    return _tiny(tiny_folder, request.param)


@pytest.fixture(scope="session")
def scored_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 prompts with three scored completions each: `brevity` falls with the words, `cheer` depends on the prompt.

    The right completion depends on the prompt: the first twelve prompts score their short answer best by the mean, the
    others their long one. The objectives lie beside the rows, as `paretune score` leaves them.
    """
    from paretune.data import store_objectives
    from paretune.profile import Objective

    path = tmp_path_factory.mktemp("rows") / "scored.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in example_rows()))
    store_objectives(path, [Objective("brevity", "column:brevity"), Objective("cheer", "column:cheer")])
    return path


def example_rows() -> Iterator[dict[str, object]]:
    """The rows of the fixture `scored_rows`."""
    for at in range(24):
        topic, want_short = TOPICS[at % 12], at < 12
        texts = [
            f"It is {topic}.",
            f"Well, {topic} are a fine thing, and many people like them.",
            f"Long ago nobody knew of {topic}, but then, step by step, people learnt to make them, keep them and love "
            f"them, and today we find {topic} nearly everywhere!",
        ]
        completions = []
        for k, text in enumerate(texts):
            cheer = 0.25 + 0.01 * at + (0.1 * (2 - k) if want_short else 0.3 * k)
            scores = {"brevity": -float(len(text.split())), "cheer": round(cheer, 4)}
            completions.append({"text": text, "scores": scores})
        yield {
            "id": f"p{at:02d}",
            "prompt": QUESTIONS[0 if want_short else 1].format(topic),
            "completions": completions,
        }


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Makes a float64 model compute in float64 throughout: transformers' norms and eager softmax go down to float32."""
    import torch  # seconds, which most tests can do without

    softmax = torch.nn.functional.softmax
    monkeypatch.setattr(torch.nn.functional, "softmax", lambda x, dim=-1, dtype=None: softmax(x, dim=dim))

    def lift(model: Any) -> Any:
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = lambda x, norm=module: (
                    x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon) * norm.weight
                )
        return model

    return lift
