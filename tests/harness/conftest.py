"""Fixtures of the harness: policies in memory with an adapter far from zero, tasks on disk, requests as lm-eval's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paretune.policy import Policy, Renderer
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.folder import save_policy
from paretune.policy.head import HeadConfig, SensingHead
from paretune.profile import Objective, Scale
from paretune.training.config import TrainConfig
from paretune.training.module import add_adapter

CHOICE = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
target_delimiter: " "
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
TEXT = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list:
  - metric: word_perplexity
    aggregation: weighted_perplexity
    higher_is_better: false
metadata:
  version: 1.0
"""
ANSWER = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 8
  do_sample: false
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
TASKS = {"tiny_choice": CHOICE, "tiny_text": TEXT, "tiny_answer": ANSWER}
WORDS = ["tea", "rain", "bees", "chess", "bread", "stars", "rivers", "clocks", "maps", "drums", "snow", "owls"]


@pytest.fixture
def task_folder(tmp_path: Path) -> Path:
    """Three tasks over twelve documents: multiple choice, perplexity of a text, a generated answer."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    docs = [
        {"question": f"Question: what is {word}?\nAnswer:", "choices": ["a drink", "the sky", word], "answer": at % 3}
        for at, word in enumerate(WORDS)
    ]
    data = folder / "docs.json"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    for name, text in TASKS.items():
        (folder / f"{name}.yaml").write_text(text.format(name=name, data=data))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` keeps what it read of the tests' files with the tests."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def make_policy() -> Callable[..., Policy]:
    """Builds a policy in float32 with a random head and an adapter whose weights are far from zero."""

    def make(model: Path, *, head: bool = True, snap: str = "none") -> Policy:
        objectives = [
            Objective("brevity", "column:brevity", scale=Scale("fixed"), scale_kind="fixed"),
            Objective("cheer", "column:cheer", scale=Scale("fixed"), scale_kind="fixed"),
            Objective("rude_words", "column:rude", "minimise", scale=Scale("fixed", True), scale_kind="fixed"),
        ]
        causal, tokenizer = load_backbone(str(model), dtype="float32")
        peft = add_adapter(causal, TrainConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0))
        torch.manual_seed(0)
        with torch.no_grad():
            for name, each in peft.named_parameters():
                if "lora_B" in name:
                    each.normal_(std=0.1)
        senses = SensingHead(hidden_size(causal), len(objectives), HeadConfig(width=16, depth=1)).eval()
        return Policy(
            causal=peft.get_base_model(),
            tokenizer=tokenizer,
            renderer=Renderer(tokenizer, objectives, snap=snap),
            objectives=objectives,
            method="sga",
            base=str(model),
            head=senses if head else None,
            peft=peft.eval(),
            metadata={"dtype": "float32", "adapter": True, "data": {"path": "rows.jsonl"}},
        )

    return make


@pytest.fixture
def policy_folder(make_policy: Callable[..., Policy], tiny_qwen: Path, tmp_path: Path) -> Path:
    """The policy on the tiny Qwen, saved."""
    folder = tmp_path / "polite"
    save_policy(make_policy(tiny_qwen), folder, metrics={})
    return folder
