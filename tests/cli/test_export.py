"""`paretune export` as it is typed: what it writes, says and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from paretune.policy import Policy, Renderer, save_policy
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.head import HeadConfig, SensingHead
from paretune.profile import Objective
from paretune.training import TrainConfig, add_adapter
from several_adapters import several

Invoke = Callable[..., Any]


@pytest.fixture
def policy_folder(tiny_llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """A saved policy of two objectives with a head of some shape."""

    def save(config: HeadConfig) -> Path:
        causal, tokenizer = load_backbone(str(tiny_llama), dtype="float32")
        objectives = [Objective("brevity", "column:brevity"), Objective("cheer", "column:cheer")]
        peft = add_adapter(causal, TrainConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0))
        torch.manual_seed(0)
        policy = Policy(
            causal=peft.get_base_model(),
            tokenizer=tokenizer,
            renderer=Renderer(tokenizer, objectives),
            objectives=objectives,
            method="sga",
            base=str(tiny_llama),
            head=SensingHead(hidden_size(causal), 2, config).eval(),
            peft=peft.eval(),
            metadata={"dtype": "float32", "adapter": True},
        )
        save_policy(policy, tmp_path / "policy", metrics={})
        return tmp_path / "policy"

    return save


def test_merged_export_is_said_and_loads(invoke: Invoke, policy_folder: Callable[..., Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    out = tmp_path / "merged"
    done = invoke("export", policy_folder(HeadConfig(depth=0)), "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [f"{out}: the model", f"{out / 'README.md'}: how to run it"]
    assert AutoModelForCausalLM.from_pretrained(out).config.architectures == ["LlamaForCausalLM"]
    assert "<brevity_score:0.50> and <cheer_score:0.50>" in (out / "README.md").read_text()


def test_vllm_export_as_json(invoke: Invoke, policy_folder: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = invoke("export", policy_folder(HeadConfig(depth=0)), "--to", "vllm", "--adapter", "--out", out, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "folder": str(out),
        "to": "vllm",
        "model": str(out / "adapter"),
        "sensor": str(out / "sensor"),
        "why": None,
    }


def test_a_head_that_the_pooling_engine_cannot_run_is_noted(
    invoke: Invoke, policy_folder: Callable[..., Path], tmp_path: Path
) -> None:
    done = invoke("export", policy_folder(HeadConfig(readout="mean")), "--to", "vllm", "--out", tmp_path / "out")
    assert done.exit_code == 0
    assert done.stderr.startswith("note: vLLM's pooling engine gets no sensing head: the head reads the mean")
    assert "sensing head" not in done.stdout


def test_bad_exports_are_refused_in_one_line(
    refused: Invoke, policy_folder: Callable[..., Path], tiny_llama: Path, tmp_path: Path
) -> None:
    source, out = policy_folder(HeadConfig(depth=0)), tmp_path / "out"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    soup, _ = several(tiny_llama, "soup")
    save_policy(soup, tmp_path / "soup", metrics={})
    for words, arguments in (
        ("Did you mean 'merged'?", (source, "--out", out, "--to", "merge")),
        ("an adapter is exported for vllm only", (source, "--out", out, "--adapter")),
        ("no such policy folder", (tmp_path / "none", "--out", out)),
        ("lies in the policy's own folder", (source, "--out", source / "sub")),
        ("full", (source, "--out", tmp_path / "full")),
        ("a policy of one adapter is fused without weights", (source, "--out", out, "--weights", "brevity=1")),
        ("weights must sum to 1", (source, "--out", out, "--weights", "brevity=0.2")),
        ("unknown dtype", (source, "--out", out, "--dtype", "float23")),
        ("say which with --weights", (tmp_path / "soup", "--out", out)),
    ):
        assert words in refused("export", *arguments, folder=tmp_path)
