"""Loading a base model: what is refused, and in which precision it computes."""

from __future__ import annotations

import json

import pytest
import torch

from paretune.errors import InputError
from paretune.policy.backbone import (
    choose_device,
    choose_dtype,
    context_length,
    decoder,
    hidden_size,
    load_backbone,
    project,
)


def test_a_loaded_backbone_gives_transformers_own_logits(tiny_model, plain_model):
    causal, tokenizer = load_backbone(str(tiny_model), dtype="float64")
    reference, _ = plain_model(tiny_model)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        hidden = decoder(causal)(input_ids=ids).last_hidden_state[0]
        torch.testing.assert_close(project(causal, hidden), reference(ids).logits[0], atol=1e-9, rtol=0)
    assert not causal.training and tokenizer.eos_token_id is not None
    assert hidden_size(causal) == 32
    assert context_length(causal) == (256 if tiny_model.name == "gpt2" else 512)


def test_logits_are_float32_in_low_precision(tiny_llama):
    causal, _ = load_backbone(str(tiny_llama), dtype="bfloat16")
    assert next(causal.parameters()).dtype == torch.bfloat16
    assert project(causal, torch.zeros(1, 32, dtype=torch.bfloat16)).dtype == torch.float32


def test_dtypes():
    cpu = torch.device("cpu")
    assert choose_dtype("auto", cpu) in (torch.bfloat16, torch.float32)
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("float64", cpu) == torch.float64
    with pytest.raises(InputError, match="Did you mean 'float32'"):
        choose_dtype("float23", cpu)


def test_devices():
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(InputError, match="unknown device 'gpu'"):
        choose_device("gpu")


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(InputError, match=r"is no model folder \(it has no config.json\)"):
        load_backbone(str(tmp_path))
    for missing in (str(tmp_path / "gone"), "./gone", "a/b/c"):
        with pytest.raises(InputError, match="no such model folder"):
            load_backbone(missing)


def test_a_mistyped_local_path_is_never_asked_of_the_hub(tmp_path, tiny_llama, monkeypatch):
    from transformers import AutoTokenizer

    asked = []

    def ask(name, **options):
        asked.append(name)
        raise OSError("no such repository")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "notes.txt").touch()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", ask)
    for path in ("models/tinny", "./tinny", "~/no/such/tinny", "a/b/c", "models/", "models/sub/tinny"):
        with pytest.raises(InputError, match=r"no such model folder|is no model folder"):
            load_backbone(path)
    for path, message in (("notes.txt", "is a file"), (" ", "a model is a folder"), (5, "a model is a folder")):
        with pytest.raises(InputError, match=message):
            load_backbone(path)
    with pytest.raises(InputError, match="a model is a folder"):
        load_backbone("a\0b")
    with pytest.raises(InputError):
        load_backbone("x" * 5000)
    asked.clear()
    for name in ("org/name", "name"):  # what may be on the hub is asked for
        with pytest.raises(InputError, match="no such repository"):
            load_backbone(name)
    assert asked == ["org/name", "name"]


@pytest.mark.parametrize(
    "config",
    [
        "{",
        "{}",
        json.dumps({"model_type": "no_such_thing"}),
        json.dumps({"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "evil.Evil"}, "hidden_size": 8}),
    ],
)
def test_a_broken_model_folder_runs_nothing_and_says_so(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(InputError, match="cannot be loaded as a causal language model"):
        load_backbone(str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_a_model_that_cannot_generate_is_refused(tmp_path, tiny_qwen):
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    model = BertForSequenceClassification(
        BertConfig(vocab_size=400, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_qwen).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"is no whole causal language model: .* missing, such as cls.predictions"):
        load_backbone(str(tmp_path))


def test_a_checkpoint_with_a_tensor_missing_is_refused(tmp_path, tiny_llama):
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_llama, tmp_path / "m")
    tensors = load_file(str(tiny_llama / "model.safetensors"))
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, str(tmp_path / "m" / "new.safetensors"), metadata={"format": "pt"})
    (tmp_path / "m" / "new.safetensors").rename(tmp_path / "m" / "model.safetensors")
    with pytest.raises(InputError, match=r"1 weights are missing, such as model\.layers\.1\.mlp\.up_proj"):
        load_backbone(str(tmp_path / "m"))
