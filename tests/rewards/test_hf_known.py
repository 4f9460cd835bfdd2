"""Published reward models: known by name or architecture, and their heads computed as their authors state them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paretune.errors import InputError
from paretune.rewards import build_reward, parse_objective
from paretune.rewards.hf import KIND
from paretune.rewards.hf.inputs import beaver_transcript
from paretune.rewards.hf.known import ARMO_ATTRIBUTES, recognise
from tiny_classifiers import make_decoder, make_headed
from tiny_models import SENTENCES

PROMPT = [{"role": "user", "content": "tell me a joke"}]
TALK = [
    {"role": "system", "content": "be kind"},
    {"role": "user", "content": "i feel sad"},
    {"role": "assistant", "content": "i am sorry"},
    {"role": "user", "content": "tell me a joke"},
]
TEXTS = [SENTENCES[0], "no", "", SENTENCES[3]]
TURN = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"


def build(spec: str) -> Any:
    return build_reward(parse_objective(f"x=hf:{spec}"))


def score(spec: str, texts: list[str], prompt: Any = PROMPT) -> list[float]:
    return build(spec)([prompt] * len(texts), texts, {})


def hidden(folder: Path, ids: list[int]) -> Any:
    """Last hidden states [t, hidden] of one text, by transformers alone."""
    import torch
    from transformers import AutoModel

    with torch.inference_mode():
        return AutoModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]


def saved(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def chat_ids(folder: Path, prompt: Any, text: str) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    whole = tokenizer.apply_chat_template([*prompt, {"role": "assistant", "content": text}], tokenize=False)
    return tokenizer(whole, add_special_tokens=False)["input_ids"]


VALUE_HEADS = {
    "linear": {"v_head.summary.weight": (1, 32), "v_head.summary.bias": (1,)},
    "mlp": {
        "v_head.summary.0.weight": (16, 32), "v_head.summary.0.bias": (16,),
        "v_head.summary.2.weight": (1, 16), "v_head.summary.2.bias": (1,),
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_grm(tmp_path: Path, kind: str) -> None:
    folder = make_headed(tmp_path, "GRewardModel", VALUE_HEADS[kind])
    own = saved(folder)
    expected = []
    for text in TEXTS:
        last = hidden(folder, chat_ids(folder, PROMPT, text))[-1]
        if kind == "mlp":
            last = (own["v_head.summary.0.weight"] @ last + own["v_head.summary.0.bias"]).clamp(min=0)
        end = "" if kind == "linear" else ".2"
        expected.append(float(own[f"v_head.summary{end}.weight"][0] @ last + own[f"v_head.summary{end}.bias"][0]))
    assert score(str(folder), TEXTS) == pytest.approx(expected, abs=1e-4)
    assert score(f"{folder}#reward", TEXTS[:1]) == pytest.approx(expected[:1], abs=1e-4)
    alone = [score(str(folder), [text])[0] for text in TEXTS]
    assert score(str(folder), TEXTS) == pytest.approx(alone, abs=1e-5)


NORMALISED: dict[str, Any] = {"do_normalize": True, "normalizer_type": "RunningMeanStd", "mean": [0.5], "var": [4.0]}


@pytest.mark.parametrize("kind", ["reward", "cost"])
@pytest.mark.parametrize("settings", [{"do_normalize": False, "mean": [9.0], "var": [9.0]}, NORMALISED])
def test_beaver(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    from transformers import AutoTokenizer

    heads = {"score_head.weight": (1, 32), "score_head.bias": (1,)}
    folder = make_headed(tmp_path, "LlamaForScore", heads, score_type=kind, score_dim=1, bias=True, **settings)
    own, tokenizer = saved(folder), AutoTokenizer.from_pretrained(folder)
    said = "BEGINNING OF CONVERSATION: USER: tell me a joke ASSISTANT:"
    last = hidden(folder, tokenizer(said + TEXTS[0])["input_ids"])[-1]
    expected = float(own["score_head.weight"][0] @ last + own["score_head.bias"][0])
    if settings["do_normalize"]:
        expected = (expected - (0.5 if kind == "reward" else 0.0)) / 2.0
    assert score(str(folder), TEXTS)[0] == pytest.approx(expected, abs=1e-4)
    assert KIND.expand is not None and KIND.expand(f"{folder}#*") == [(kind, f"{folder}#{kind}")]


def test_beavers_saved_statistics_win_over_the_configs(tmp_path: Path) -> None:
    heads = {"score_head.weight": (1, 32), "normalizer.mean": (1,), "normalizer.var": (1,)}
    folder = make_headed(tmp_path, "LlamaModelForScore", heads, score_type="reward", **NORMALISED)
    from safetensors.torch import save_file

    tensors = saved(folder)
    tensors["normalizer.mean"][:], tensors["normalizer.var"][:] = 1.0, 9.0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    normalised = score(str(folder), TEXTS[:1])[0]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"do_normalize": False}))
    KIND.release()
    assert normalised == pytest.approx((score(str(folder), TEXTS[:1])[0] - 1.0) / 3.0, abs=1e-5)


def test_beavers_transcript() -> None:
    assert beaver_transcript(TALK, "</s>") == (
        "BEGINNING OF CONVERSATION: USER: be kind\n\ni feel sad ASSISTANT:i am sorry</s>USER: tell me a joke ASSISTANT:"
    )


GATED = {
    "regression_layer.weight": (19, 32),
    "reward_transform_matrix": (19, 19),
    "gating.logit_scale": (1,),
    "gating.layers.0.weight": (8, 32), "gating.layers.0.bias": (8,),
    "gating.layers.1.weight": (19, 8), "gating.layers.1.bias": (19,),
}  # fmt: skip


def armo(folder: Path) -> Path:
    return make_headed(folder, "LlamaForRewardModelWithGating", GATED, num_objectives=19, gating_temperature=2.0)


@pytest.mark.parametrize("prompt", [PROMPT, TALK], ids=["one turn", "several"])
def test_armo(tmp_path: Path, prompt: Any) -> None:
    from transformers import AutoTokenizer

    folder = armo(tmp_path)
    own, tokenizer = saved(folder), AutoTokenizer.from_pretrained(folder)
    ids = chat_ids(folder, prompt, TEXTS[0])
    states = hidden(folder, ids)
    attributes = own["regression_layer.weight"] @ states[-1]
    turn = tokenizer(TURN, add_special_tokens=False)["input_ids"]
    begins = max(at for at in range(len(ids)) if ids[at : at + len(turn)] == turn)
    inner = (own["gating.layers.0.weight"] @ states[begins] + own["gating.layers.0.bias"]).clamp(min=0)
    gate = ((own["gating.layers.1.weight"] @ inner + own["gating.layers.1.bias"]) / 2.0).softmax(dim=0)
    gate = gate * own["gating.logit_scale"][0]
    expected = float(gate @ (own["reward_transform_matrix"].T @ attributes))
    assert score(str(folder), TEXTS, prompt)[0] == pytest.approx(expected, abs=1e-4)
    assert score(f"{folder}#score", TEXTS, prompt)[0] == pytest.approx(expected, abs=1e-4)
    for at, name in enumerate(ARMO_ATTRIBUTES):
        assert score(f"{folder}#{name}", TEXTS, prompt)[0] == pytest.approx(float(attributes[at]), abs=1e-4)
    assert KIND.expand is not None
    assert [label for label, _ in KIND.expand(f"{folder}#*")] == [*ARMO_ATTRIBUTES, "score"]


def test_armo_alone_and_in_a_batch(tmp_path: Path) -> None:
    folder = armo(tmp_path)
    alone = [score(str(folder), [text])[0] for text in TEXTS]
    assert score(str(folder), TEXTS) == pytest.approx(alone, abs=1e-5)


def test_armo_without_the_turns_beginning_has_attributes_only(tmp_path: Path) -> None:
    folder = armo(tmp_path)
    long = ["a very long answer " * 20]
    assert score(f"{folder}?max_length=40", long) == [None]
    assert score(f"{folder}#code-style?max_length=40", long)[0] is not None


@pytest.mark.parametrize(
    ("architecture", "heads", "missing"),
    [
        ("GRewardModel", {}, r"v_head\.summary\.0\.weight"),
        ("LlamaForScore", {}, r"score_head\.weight"),
        ("LlamaForRewardModelWithGating", {"regression_layer.weight": (19, 32)}, "reward_transform_matrix"),
    ],
)
def test_a_head_that_is_not_saved(
    tmp_path: Path, architecture: str, heads: dict[str, tuple[int, ...]], missing: str
) -> None:
    with pytest.raises(InputError, match=rf"no trained reward head: its weights lack {missing}"):
        build(str(make_headed(tmp_path, architecture, heads)))


def test_an_unknown_architecture_with_code_of_its_own_is_refused(tmp_path: Path) -> None:
    folder = make_headed(tmp_path, "InternLM2ForRewardModel", {})
    with pytest.raises(InputError, match=r"\(InternLM2ForRewardModel\) needs Python code.*--allow-remote-code"):
        build(str(folder))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("OpenAssistant/reward-model-deberta-v3-large-v2", "pair"),
        ("Ray2333/gpt2-large-helpful-reward_model", "hh"),
        ("/cache/models--Ray2333--gpt2-large-harmless-reward_model/snapshots/1", "hh"),
        ("Ray2333/GRM-llama3.2-3B-sftreg", "chat"),
        ("Skywork/Skywork-Reward-V2-Llama-3.1-8B", ""),
    ],
)
def test_models_known_by_name(name: str, expected: str) -> None:
    assert recognise(name, {"architectures": ["GPT2ForSequenceClassification"]}).input == expected
    assert recognise("/a/copy", {"_name_or_path": name}).input == expected


def test_a_known_name_reads_its_transcript_and_an_option_overrules_it(tmp_path: Path) -> None:
    (tmp_path / "gpt2-large-helpful-reward_model").mkdir()
    folder = make_decoder(tmp_path / "gpt2-large-helpful-reward_model", "gpt2")
    assert score(str(folder), TEXTS) == score(f"{folder}?input=hh", TEXTS)
    assert score(str(folder), TEXTS) != pytest.approx(score(f"{folder}?input=pair", TEXTS), abs=1e-3)


def test_weights_in_several_files(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = make_headed(tmp_path, "GRewardModel", VALUE_HEADS["mlp"])
    expected = score(str(folder), TEXTS)
    tensors = saved(folder)
    parts: list[dict[str, Any]] = [{}, {}]
    for at, (name, value) in enumerate(sorted(tensors.items())):
        parts[at % 2][name] = value
    places = {}
    for at, part in enumerate(parts):
        file = f"model-{at + 1:05d}-of-00002.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors").unlink()
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    KIND.release()
    assert score(str(folder), TEXTS) == pytest.approx(expected, abs=1e-6)


def test_code_of_its_own_runs_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    (tmp_path / "model").mkdir()
    folder = make_decoder(tmp_path / "model", "llama")
    expected = score(str(folder), TEXTS)
    (folder / "own.py").write_text(
        "from transformers import LlamaForSequenceClassification\n"
        "class Doubled(LlamaForSequenceClassification):\n"
        "    def forward(self, *args, **kwargs):\n"
        "        out = super().forward(*args, **kwargs)\n"
        "        out.logits = out.logits * 2\n"
        "        return out\n"
    )
    own = {"architectures": ["Doubled"], "auto_map": {"AutoModelForSequenceClassification": "own.Doubled"}}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | own))
    KIND.release()
    with pytest.raises(InputError, match="needs Python code"):
        build(str(folder))
    allowed = build_reward(parse_objective(f"x=hf:{folder}"), allow_remote_code=True)
    found = allowed([PROMPT] * len(TEXTS), TEXTS, {})
    assert found == pytest.approx([2 * value for value in expected], abs=1e-5)
