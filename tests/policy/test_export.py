"""Export: what other software makes of a policy's folder equals what the policy itself says."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paretune.errors import InputError
from paretune.files import read_json
from paretune.policy import Policy, load_policy, save_policy
from paretune.policy.backbone import hidden_size
from paretune.policy.export import PROVENANCE, affine_layers, export_policy, policy_print, why_no_sensor
from paretune.policy.export.merged import save_merged
from paretune.policy.head import HeadConfig, SensingHead
from several_adapters import several

TOLERANCE = 1e-4
"""Logits of a merged model in float32: the low-rank product is added to the weights in place of the output."""


def random_head(hidden: int, count: int, config: HeadConfig, seed: int = 0) -> SensingHead:
    """A head none of whose tensors is what it starts as."""
    torch.manual_seed(seed)
    head = SensingHead(hidden, count, config)
    with torch.no_grad():
        if config.standardise_input:
            head.input_mean.normal_()
            head.input_std.uniform_(0.5, 2)
        if config.skip:
            head.base.normal_()
            head.mix.uniform_(0, 1)
    return head.eval()


@pytest.fixture
def saved(make_policy: Callable[..., Policy], tmp_path: Path) -> Callable[..., Path]:
    """A saved policy with a random head of some shape; `None` is no head."""

    def save(model: Path, config: HeadConfig | None = None, *, head: bool = True) -> Path:
        policy = make_policy(model)
        shape = config or HeadConfig(width=16, depth=1)
        made = random_head(hidden_size(policy.causal), len(policy.names), shape)
        policy.head = made if head else None
        save_policy(policy, tmp_path / "policy", metrics={})
        return tmp_path / "policy"

    return save


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    """Of all positions, [L, V]."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits[0]  # type: ignore[no-any-return]


def raw_outputs(policy: Policy, ids: list[int]) -> torch.Tensor:
    """What the policy's head says of a prefix, [P], by its own way."""
    from paretune.policy.engine import prefill

    state = prefill(policy.causal, [ids], policy.tokenizer.pad_token_id)
    assert policy.head is not None
    with torch.no_grad():
        return policy.head(state.readout_BH)[0]  # type: ignore[no-any-return]


# --- merged ---------------------------------------------------------------------------------------------------------


def test_merged_model_says_in_transformers_what_the_policy_says(
    saved: Callable[..., Path], tiny_model: Path, tmp_path: Path, prompts: list[Any]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = saved(tiny_model)
    done = export_policy(source, tmp_path / "merged", to="merged")
    assert done.model == tmp_path / "merged" and done.sensor is None and done.why is None
    policy = load_policy(source)
    plain = AutoModelForCausalLM.from_pretrained(done.model, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(done.model)
    base = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="float32").eval()
    for messages in prompts:
        ids = policy.renderer.prefix(messages) + policy.renderer.suffix(messages, {"brevity": 0.8})
        wanted = logits(policy.causal, ids)
        assert torch.allclose(logits(plain, ids), wanted, atol=TOLERANCE, rtol=0)
        assert not torch.allclose(logits(base, ids), wanted, atol=0.05, rtol=0)  # the adapter does something
        assert tokenizer(policy.renderer.text(messages), add_special_tokens=False)["input_ids"]
    assert tokenizer.chat_template == policy.tokenizer.chat_template


def test_merged_model_stops_where_the_policy_stops(
    saved: Callable[..., Path], tiny_model: Path, tmp_path: Path
) -> None:
    source = saved(tiny_model)
    export_policy(source, tmp_path / "merged")
    policy = load_policy(source)
    ends = read_json(tmp_path / "merged" / "generation_config.json")["eos_token_id"]
    assert set(ends) == policy.renderer.stop_ids(policy.causal.generation_config.eos_token_id)


def test_merged_greedy_answers_are_the_policys(
    saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path, prompts: list[Any]
) -> None:
    from transformers import AutoModelForCausalLM

    source = saved(tiny_llama)
    export_policy(source, tmp_path / "merged")
    policy = load_policy(source)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="float32").eval()
    wanted = policy.generate(prompts, condition="none", max_new_tokens=12)
    for messages, answer in zip(prompts, wanted, strict=True):
        ids = torch.tensor([policy.renderer.prefix(messages) + policy.renderer.suffix(messages, None)])
        found = plain.generate(ids, max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(ids))
        assert policy.tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True) == answer.text


def test_a_sampling_default_that_nothing_uses_does_not_stop_the_export(
    saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path
) -> None:
    source = saved(tiny_llama)
    copied = tmp_path / "base"
    copied.mkdir()
    for file in tiny_llama.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    settings = read_json(copied / "generation_config.json")
    (copied / "generation_config.json").write_text(json.dumps(settings | {"temperature": 0.6, "do_sample": False}))
    export_policy(source, tmp_path / "merged", base=str(copied))
    assert "temperature" not in read_json(tmp_path / "merged" / "generation_config.json")


def test_provenance_names_the_policy_and_not_another(
    saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path
) -> None:
    source = saved(tiny_llama)
    before = policy_print(source)
    export_policy(source, tmp_path / "merged")
    about = read_json(tmp_path / "merged" / PROVENANCE)
    assert about["policy"] == before == policy_print(source)
    assert [each["name"] for each in about["objectives"]] == ["brevity", "cheer", "rude_words"]
    assert about["dtype"] == "float32" and about["weights"] is None and about["to"] == "merged"
    head = load_file(source / "head.safetensors")
    head["target_mean"] += 0.1
    from safetensors.torch import save_file

    save_file(head, source / "head.safetensors")
    assert policy_print(source) != before


def test_a_policy_that_is_not_merged_is_not_written_as_if_it_were(
    saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="adapter is not merged yet"):
        save_merged(load_policy(saved(tiny_llama)), tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_dtype_is_that_of_the_saved_weights(saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path) -> None:
    export_policy(saved(tiny_llama), tmp_path / "half", dtype="bfloat16")
    tensors = load_file(tmp_path / "half" / "model.safetensors")
    assert {each.dtype for each in tensors.values()} == {torch.bfloat16}
    assert read_json(tmp_path / "half" / PROVENANCE)["dtype"] == "bfloat16"


def test_several_adapters_are_exported_under_weights(tiny_llama: Path, tmp_path: Path, prompts: list[Any]) -> None:
    from transformers import AutoModelForCausalLM

    policy, _ = several(tiny_llama, "soup")
    save_policy(policy, tmp_path / "soup", metrics={})
    weights = {"brevity": 0.5, "cheer": 0.3, "rude_words": 0.2}
    with pytest.raises(InputError, match="3 adapters, which are one model for some weights only"):
        export_policy(tmp_path / "soup", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    export_policy(tmp_path / "soup", tmp_path / "out", weights=weights)
    loaded = load_policy(tmp_path / "soup")
    assert loaded.parts is not None
    loaded.parts.use(loaded.parts.blends(weights)[0])
    ids = loaded.renderer.prefix(prompts[1]) + loaded.renderer.suffix(prompts[1], None)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="float32").eval()
    assert torch.allclose(logits(plain, ids), logits(loaded.causal, ids), atol=TOLERANCE, rtol=0)
    assert read_json(tmp_path / "out" / PROVENANCE)["weights"] == weights


def test_what_cannot_be_exported_is_said_and_leaves_nothing(
    saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path
) -> None:
    source, out = saved(tiny_llama), tmp_path / "out"
    mixed, _ = several(tiny_llama, "mix")
    save_policy(mixed, tmp_path / "mix", metrics={})
    even = {"brevity": 0.5, "cheer": 0.5}
    for words, place, options in (
        ("export to one of merged, vllm, not to 'mergd'", source, {"to": "mergd"}),
        ("an adapter is exported for vllm only", source, {"adapter": True}),
        ("fused without weights", source, {"weights": even}),
        ("unknown objective 'brevty'", source, {"weights": {"brevty": 1.0}}),
        ("mixes 2 models under these weights", tmp_path / "mix", {"weights": even}),
        ("has 3 adapters, not one", tmp_path / "mix", {"to": "vllm", "adapter": True, "weights": even}),
        ("no such policy folder", tmp_path / "none", {}),
    ):
        with pytest.raises(InputError, match=words):
            export_policy(place, out, **options)
    with pytest.raises(InputError, match="lies in the policy's own folder"):
        export_policy(source, source / "merged")
    with pytest.raises(InputError, match="lies in the policy's own folder"):
        export_policy(source, source, overwrite=True)
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_dir()) == ["mix", "policy"]
    assert load_policy(source).has_head


# --- the head as layers ---------------------------------------------------------------------------------------------

SHAPES = [
    HeadConfig(depth=0),
    HeadConfig(depth=0, skip=True, standardise_input=True),
    HeadConfig(width=9, depth=1),
    HeadConfig(width=9, depth=3, standardise_input=True, hidden_dropout=0.2),
    HeadConfig(width=9, depth=1, skip=True),
    HeadConfig(width=9, depth=3, skip=True, standardise_input=True),
    HeadConfig(width=7, depth=2, skip=True, kind="binned", bins=4),
    HeadConfig(width=7, depth=2, kind="gaussian", standardise_input=True),
    HeadConfig(width=7, depth=1, skip=True, kind="simplex"),
]


@pytest.mark.parametrize("config", SHAPES, ids=lambda each: f"{each.kind}-{each.depth}-{each.skip}")
def test_a_head_is_linear_layers_with_relus_between(config: HeadConfig) -> None:
    head = random_head(12, 3, config, seed=3)
    x = torch.randn(20, 12, generator=torch.Generator().manual_seed(0)) * 3
    found = x
    layers = affine_layers(head)
    for at, layer in enumerate(layers):
        found = torch.nn.functional.linear(found, layer.weight_OI, layer.bias_O)
        found = found.relu() if at + 1 < len(layers) else found
    with torch.no_grad():
        assert torch.allclose(found, head(x), atol=1e-5)
    assert len(layers) == config.depth + 1


def test_what_a_pooling_engine_cannot_run_is_said() -> None:
    for words, config in (
        ("after decoder layer 20 of 30", HeadConfig(layer=2 / 3)),
        ("mean over the last user message", HeadConfig(readout="mean")),
        ("begins with a LayerNorm", HeadConfig(input_norm=True)),
    ):
        head = SensingHead(8, 2, config)
        why = why_no_sensor(head, 30)
        assert why is not None and words in why
    assert why_no_sensor(SensingHead(8, 2, HeadConfig(layer=0.99)), 30) is None
    with pytest.raises(InputError, match="LayerNorm"):
        affine_layers(SensingHead(8, 2, HeadConfig(input_norm=True)))


# --- vllm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["regression", "simplex", "binned"])
@pytest.mark.parametrize("model", ["tiny_llama", "tiny_qwen"])
def test_a_linear_head_is_a_sequence_classifier(
    kind: Any,
    model: str,
    saved: Callable[..., Path],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    prompts: list[Any],
) -> None:
    from transformers import AutoModelForSequenceClassification

    source = saved(
        request.getfixturevalue(model), HeadConfig(kind=kind, depth=0, skip=True, standardise_input=True, bins=3)
    )
    done = export_policy(source, tmp_path / "out", to="vllm")
    assert done.model == tmp_path / "out" / "model" and done.sensor == tmp_path / "out" / "sensor"
    policy = load_policy(source)
    plain = AutoModelForSequenceClassification.from_pretrained(done.sensor, dtype="float32").eval()
    bias = load_file(done.sensor / "model.safetensors")["score.bias"]  # vLLM loads it, transformers has no place
    for messages in prompts:
        ids = policy.renderer.prefix(messages)
        assert torch.allclose(logits(plain, ids) + bias, raw_outputs(policy, ids), atol=TOLERANCE, rtol=0)
    # the activation that vLLM applies (pooler/activations.py, get_act_fn), and the labels by which it answers
    config = read_json(done.sensor / "config.json")
    assert config["architectures"][0].endswith("ForSequenceClassification")
    activations = {"regression": "multi_label_classification", "simplex": "single_label_classification"}
    assert config["problem_type"] == activations.get(kind, "regression")
    if kind != "binned":
        assert list(config["id2label"].values()) == policy.names
        ids = policy.renderer.prefix(prompts[1])
        said = logits(plain, ids) + bias
        profile = said.sigmoid() if kind == "regression" else said.softmax(-1)
        sensed = policy.sense([prompts[1]])[0]
        assert profile.tolist() == pytest.approx(list(sensed.values()), abs=TOLERANCE)


def test_a_linear_head_is_one_dense_module_where_vllm_has_a_classifier_of_its_own(
    saved: Callable[..., Path], tiny_gpt2: Path, tmp_path: Path
) -> None:
    done = export_policy(saved(tiny_gpt2, HeadConfig(depth=0)), tmp_path / "out", to="vllm")
    assert done.sensor is not None
    assert read_json(done.sensor / "config.json")["architectures"] == ["GPT2Model"]
    assert len(read_json(done.sensor / "modules.json")) == 3


def test_a_deep_head_is_dense_modules_behind_the_last_token(
    saved: Callable[..., Path], tiny_model: Path, tmp_path: Path, prompts: list[Any]
) -> None:
    from transformers import AutoModel

    source = saved(tiny_model, HeadConfig(width=9, depth=2, skip=True, standardise_input=True))
    done = export_policy(source, tmp_path / "out", to="vllm")
    assert done.sensor is not None and done.why is None
    modules = read_json(done.sensor / "modules.json")
    assert [each["type"].rpartition(".")[2] for each in modules] == ["Transformer", "Pooling", *["Dense"] * 3]
    pooling = read_json(done.sensor / modules[1]["path"] / "config.json")
    assert pooling["pooling_mode_lasttoken"] is True
    policy = load_policy(source)
    model = AutoModel.from_pretrained(done.sensor, dtype="float32").eval()
    for messages in prompts:
        ids = policy.renderer.prefix(messages)
        with torch.no_grad():
            found = model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        for module in modules[2:]:
            config = read_json(done.sensor / module["path"] / "config.json")
            tensors = load_file(done.sensor / module["path"] / "model.safetensors")
            assert (config["out_features"], config["in_features"]) == tuple(tensors["linear.weight"].shape)
            found = torch.nn.functional.linear(found, tensors["linear.weight"], tensors["linear.bias"])
            found = found.relu() if config["activation_function"].endswith("ReLU") else found
        assert torch.allclose(found, raw_outputs(policy, ids), atol=TOLERANCE, rtol=0)
    assert read_json(tmp_path / "out" / PROVENANCE)["sensor"]["form"] == "embed"
    assert "--convert embed" in (tmp_path / "out" / "README.md").read_text()


def test_a_head_that_is_no_pooling_model_is_left_out_and_said(
    saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path
) -> None:
    source = saved(tiny_llama, HeadConfig(width=9, depth=1, readout="mean", layer=0.5))
    done = export_policy(source, tmp_path / "out", to="vllm")
    assert done.sensor is None and done.why is not None and "after decoder layer 1 of 2" in done.why
    assert (done.model / "model.safetensors").is_file() and not (tmp_path / "out" / "sensor").exists()
    assert done.why in (tmp_path / "out" / "README.md").read_text()


def test_adapter_is_a_plain_peft_adapter(
    saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path, prompts: list[Any]
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    source = saved(tiny_llama, HeadConfig(depth=0))
    done = export_policy(source, tmp_path / "out", to="vllm", adapter=True)
    assert done.model == tmp_path / "out" / "adapter" and not (tmp_path / "out" / "model").exists()
    base = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype="float32")
    plain = PeftModel.from_pretrained(base, str(done.model)).eval()
    policy = load_policy(source)
    ids = policy.renderer.prefix(prompts[1]) + policy.renderer.suffix(prompts[1], None)
    assert torch.allclose(logits(plain, ids), logits(policy.causal, ids), atol=TOLERANCE, rtol=0)
    assert done.sensor is not None
    assert "--max-lora-rank 8 " in (tmp_path / "out" / "README.md").read_text()  # the least that takes rank 4


def test_the_readme_can_be_copied_whatever_the_base_models_name(
    saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path
) -> None:
    import yaml

    base = tmp_path / "it's: a `base`; touch broken #"
    shutil.copytree(tiny_llama, base)
    done = export_policy(saved(tiny_llama), tmp_path / "out", to="vllm", adapter=True, base=str(base))
    lines = (done.folder / "README.md").read_text().splitlines()
    assert yaml.safe_load("\n".join(lines[1 : lines.index("---", 1)]))["base_model"] == str(base)
    command = next(line for line in lines if line.startswith("vllm serve "))
    assert shlex.split(command)[:4] == ["vllm", "serve", str(base), "--tokenizer"]


def test_a_policy_without_a_head_has_no_sensor(saved: Callable[..., Path], tiny_llama: Path, tmp_path: Path) -> None:
    done = export_policy(saved(tiny_llama, head=False), tmp_path / "out", to="vllm")
    assert done.sensor is None and done.why is None
