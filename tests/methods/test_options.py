"""Every setting of every method changes something: an option that does nothing is a promise broken."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods import METHODS
from paretune.methods.sga.config import PRESETS, SgaConfig
from paretune.policy.head import HeadConfig
from paretune.training import TrainConfig, resolve

SHARED = {
    "max_steps": "1",
    "max_tokens": "1",
    "seed": "1",
    "epochs": "2",
    "batch_size": "5",
    "max_length": "175",
    "lr": "1e-2",
    "schedule": "constant",
    "warmup_steps": "2",
    "betas": "[0.5, 0.6]",
    "weight_decay": "0.5",
    "clip": "1e-3",
    "dtype": "bfloat16",
    "lora_r": "2",
    "lora_alpha": "8",
    "lora_dropout": "0.5",
    "lora_layers": "1",
    "validation": "0.3",
    "test": "0.3",
    "pairs": "pareto",
    "pair_margin": "0.3",
}
SENSING = {
    "lr_head": "0.1",
    "scale": "sigmoid",
    "preset": "paper",
    "style": "scores",
    "targets": "wanted",
    "weight_dpo": "1",
    "weight_sft": "1",
    "weight_conditional": "2",
    "weight_contrast": "0.5",
    "weight_sense": "3",
    "completions": "1",
    "spread": "1",
    "partners": "profile",
    "unconditioned": "1",
    "standardise": "false",
    "backbone_grad_scale": "1",
    "head_epochs": "0",
    "head_lr": "0.1",
    "head.width": "8",
    "head.depth": "2",
    "head.dropout": "0.5",
    "head.hidden_dropout": "0",
    "head.input_norm": "true",
    "head.standardise_input": "false",
    "head.skip": "false",
    "head.kind": "gaussian",
    "head.readout": "last",
    "head.layer": "1",
    "head_warmup": "3",
}
WITH = {  # settings that matter where another is on
    "beta": ("weight_dpo=1", "0.5"),
    "reference_free": ("weight_dpo=1", "true"),
    "contrast_beta": ("weight_contrast=1", "0.5"),
    "contrast_margin": ("weight_contrast=1", "0.5"),
    "request_rejected": ("weight_dpo=1", "0.5"),
    "sft_epochs": ("epochs=2", "1"),
    "top_k": ("targets=top-k", "1"),
    "sensed_share": ("head_warmup=3", "1"),
    "jitter": ("head_warmup=3 style=scores", "1"),
    "head.bins": ("head.kind=binned", "5"),
    "pair_weights": ("pairs=weights pair_weights.brevity=1", "{brevity: 1, cheer: 3}"),
}
ELSEWHERE = {
    "snap": "changes what a policy does with what it senses",
    "micro_tokens": "changes the passes, by design no number beyond rounding",
    "gradient_checkpointing": "changes the memory, by design no number",
    "near_duplicates": "changes the split where there are near-duplicates (tests/methods/test_prepare.py)",
    "nonfinite": "says what becomes of a batch that is not finite (tests/training/test_loop.py)",
    "save_every": "says when checkpoints are saved (tests/methods/test_resume.py)",
    "keep": "says how many checkpoints are kept (tests/methods/test_resume.py)",
}


def trained(folder):
    """A digest of what training made: adapter, head, and the journal without its clock."""
    digest = hashlib.sha256((folder / "adapter" / "adapter_model.safetensors").read_bytes())
    if (folder / "head.safetensors").exists():
        digest.update((folder / "head.safetensors").read_bytes())
    return digest.hexdigest(), journal(folder)


def journal(folder):
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return [{key: value for key, value in each.items() if key != "tokens_per_second"} for each in lines]


@pytest.fixture
def wanted_rows(scored_rows, tmp_path):
    """The scored rows with a profile that a person wants, for the option `targets`."""
    rows = [json.loads(line) for line in scored_rows.read_text().splitlines()]
    for at, row in enumerate(rows):
        row["wanted"] = {"brevity": (at % 5) / 4, "cheer": 0.9}
    path = tmp_path / "wanted.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_lists_are_complete():
    shared = {each.name for each in dataclasses.fields(TrainConfig)}
    known = {each.name for each in dataclasses.fields(SgaConfig)} - {"head"}
    known |= {f"head.{each.name}" for each in dataclasses.fields(HeadConfig)}
    assert SHARED.keys() | SENSING.keys() | WITH.keys() | ELSEWHERE.keys() == known
    elsewhere = {"lr_head", "scale", "pair_weights"} | (ELSEWHERE.keys() - {"snap"})
    assert SHARED.keys() | elsewhere == shared
    for method, own in (("dpo", {"beta", "reference_free"}), ("sft", set())):
        assert {each.name for each in dataclasses.fields(METHODS[method].config)} - shared == own


@pytest.mark.parametrize(("key", "value"), [*SHARED.items(), *SENSING.items()])
def test_every_option_of_sga_changes_the_policy(quick, wanted_rows, key, value):
    data = {"data": wanted_rows} if key == "targets" else {}
    one, two = quick("one", **data), quick("two", f"{key}={value}", **data)
    assert trained(one) != trained(two)
    config = read_json(two / "policy.json")["config"]
    inner, _, rest = key.partition(".")
    assert read_json(one / "policy.json")["config"] != config
    assert (config[inner][rest] if rest else config[key]) is not None


@pytest.mark.parametrize(("key", "condition", "value"), [(key, *rest) for key, rest in WITH.items()])
def test_options_that_need_another(quick, key, condition, value):
    given = condition.split()
    assert trained(quick("one", *given)) != trained(quick("two", *given, f"{key}={value}"))


@pytest.mark.parametrize(("key", "value"), SHARED.items())
def test_every_shared_option_changes_dpo(quick, key, value):
    assert trained(quick("one", method="dpo")) != trained(quick("two", f"{key}={value}", method="dpo"))


@pytest.mark.parametrize("method", [each for each in METHODS.values() if not each.senses], ids=lambda each: each.name)
def test_a_method_without_a_head_refuses_its_learning_rate(method):
    with pytest.raises(InputError, match="field 'lr_head': has no effect here: the method trains no sensing head"):
        resolve(method.config, presets=method.presets, default_preset=method.default_preset, settings=["lr_head=1e-3"])


@pytest.mark.parametrize("setting", ["beta=0.5", "reference_free=true"])
def test_the_options_of_dpo(quick, setting):
    assert trained(quick("one", method="dpo")) != trained(quick("two", setting, method="dpo"))


def test_snap_changes_what_is_done_with_what_is_sensed(quick):
    from paretune.policy import load_policy

    folder = quick("one", "snap=paper", objectives=["brevity"])  # one objective: the paper's grid is for all but two
    prompt = [[{"role": "user", "content": "What is tea?"}]]
    answer = load_policy(folder).generate(prompt, max_new_tokens=1)[0]
    assert answer.profile["brevity"] in (0, 0.25, 0.5, 0.75, 1) and answer.profile != answer.sensed


@pytest.mark.parametrize(("key", "value"), [("micro_tokens", "64"), ("gradient_checkpointing", "true")])
def test_options_that_change_the_cost_and_no_number(quick, key, value):
    exact = ("dtype=float64", "head.dropout=0", "head.hidden_dropout=0")  # draws are made a forward pass
    one, two = quick("one", *exact), quick("two", *exact, f"{key}={value}")
    for a, b in zip(journal(one), journal(two), strict=True):
        assert a == pytest.approx(b, rel=1e-5)


# --- presets ------------------------------------------------------------------------------------------------------


def test_the_paper_preset_is_the_paper():
    paper = resolve(SgaConfig, presets=PRESETS, default_preset="robust", settings=["preset=paper"])
    published = {
        "weight_dpo": 1.0, "weight_sense": 1000.0, "weight_sft": 0.0, "weight_conditional": 0.0, "weight_contrast": 0.0,
        "beta": 0.1, "reference_free": False, "style": "scores", "snap": "paper", "targets": "chosen",
        "standardise": False, "backbone_grad_scale": 1.0, "unconditioned": 0.0, "head_epochs": 0, "epochs": 2,
        "lr": 1e-5, "lr_head": 0.0, "schedule": "cosine", "warmup_steps": 0, "betas": (0.95, 0.95), "clip": 5.0,
        "weight_decay": 0.0,
        "max_length": 1024, "dtype": "bfloat16", "lora_r": 32, "lora_alpha": 64, "lora_dropout": 0.05, "lora_layers": 0,
    }  # fmt: skip
    assert {key: getattr(paper, key) for key in published} == published
    assert 64 <= paper.batch_size <= 96
    assert paper.head == HeadConfig(width=1024, depth=3, dropout=0.1, input_norm=False)
    sft = resolve(SgaConfig, presets=PRESETS, default_preset="robust", settings=["preset=paper-sft"])
    assert dataclasses.replace(sft, preset="paper", weight_dpo=1.0, weight_sft=0.0) == paper


def test_every_preset_builds():
    for method in METHODS.values():
        for preset in method.presets:
            resolve(method.config, presets=method.presets, settings=[f"preset={preset}"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("weight_dpo=-1", "field 'weight_dpo': must be 0 or more"),
        ("weight_sense=.nan", "field 'weight_sense'"),
        ("weight_conditional=0 weight_contrast=0", "at least one of weight_dpo, weight_sft, weight_conditional"),
        ("beta=0", "field 'beta'"),
        ("contrast_beta=-1", "field 'contrast_beta'"),
        ("head_lr=0", "field 'head_lr'"),
        ("completions=0", "field 'completions'"),
        ("unconditioned=1.1", "field 'unconditioned'"),
        ("backbone_grad_scale=2", "field 'backbone_grad_scale'"),
        ("contrast_margin=-0.1", "field 'contrast_margin'"),
        ("head_epochs=-1", "field 'head_epochs'"),
        ("top_k=0", "field 'top_k'"),
        ("sft_epochs=2 epochs=2", "field 'sft_epochs': must be less than epochs=2"),
        ("sensed_share=0.5", "field 'sensed_share': needs a head that has been fitted: set head_warmup"),
        ("jitter=1", "field 'jitter': needs a head"),
        ("jitter=-1", "field 'jitter'"),
        ("request_rejected=0.5", "field 'request_rejected': concerns preference pairs, which weight_dpo=0"),
        ("head.kind=guess", "'guess' is not allowed"),
        ("head.layer=0", "layer is a fraction"),
        ("head.layer=1.5", "layer is a fraction"),
        ("head.depth=-1", "head: depth must be at least 0"),
        ("head.widht=3", "Did you mean 'head.width'"),
        ("weight_contrst=1", "Did you mean 'weight_contrast'"),
        ("style=level", "Did you mean 'levels'"),
    ],
)
def test_settings_of_sga_out_of_range(setting, message):
    with pytest.raises(InputError, match=message):
        resolve(SgaConfig, presets=PRESETS, default_preset="robust", settings=setting.split())
