"""The pipeline: rows and a model in, a policy folder out; same seed, same bytes, and failure leaves nothing."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from paretune.data import read_rows, split_rows
from paretune.data.rows import prompt_key
from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods import train
from paretune.policy import load_policy

PROMPTS = [
    [{"role": "user", "content": text}] for text in ("What is tea?", "Explain at length how bees came to be.", "Hi")
]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def rows_file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def rows(scored_rows):
    """The scored rows as JSON objects."""
    return [json.loads(line) for line in scored_rows.read_text().splitlines()]


# --- what comes out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sga", "dpo", "sft"])
def test_a_policy_folder_with_the_documented_files(quick, method):
    folder = quick(method=method)
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    wanted = {
        ".paretune", "README.md", "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
        "chat_template.jinja", "metrics.json", "policy.json", "tokenizer.json", "tokenizer_config.json", "train.jsonl",
    }  # fmt: skip
    assert found == wanted | ({"head.safetensors"} if method == "sga" else set())
    assert names(folder.parent) == ["policy"]  # no journal, no part left beside it
    assert (folder / ".paretune").exists()


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_qwen", "tiny_gpt2"])
def test_trained_policies_of_every_model_load_sense_and_answer(request, quick, fixture):
    policy = load_policy(quick(model=request.getfixturevalue(fixture)))
    assert policy.names == ["brevity", "cheer"] and policy.has_head
    for sensed, answer in zip(policy.sense(PROMPTS), policy.generate(PROMPTS, max_new_tokens=4), strict=True):
        assert all(0 < value < 1 for value in sensed.values())
        assert answer.sensed == pytest.approx(sensed, abs=1e-5)
    assert [each.tokens for each in policy.generate(PROMPTS, condition="mean", max_new_tokens=1)]


def test_training_moves_the_adapter_and_the_loaded_head_is_the_trained_one(quick):
    folder = quick()
    adapter = load_file(str(folder / "adapter" / "adapter_model.safetensors"))
    assert any(each.abs().max() > 0 for name, each in adapter.items() if "lora_B" in name)
    policy = load_policy(folder)
    for name, each in load_file(str(folder / "head.safetensors")).items():
        assert torch.equal(policy.head.state_dict()[name], each)
    loaded = policy.peft.state_dict()
    for name, each in adapter.items():
        assert torch.equal(loaded[name.replace(".weight", ".default.weight")], each)


def test_policy_json_says_what_was_done(quick, scored_rows, tiny_llama):
    folder = quick("policy", "seed=3", "preset=paper")
    described = read_json(folder / "policy.json")
    assert (described["format"], described["method"], described["base_model"]) == (1, "sga", str(tiny_llama))
    assert described["config"]["seed"] == 3 and described["config"]["preset"] == "paper"
    assert described["renderer"] == {"style": "scores", "snap": "paper"}
    assert described["data"]["path"] == str(scored_rows) and described["data"]["targets"] == "chosen"
    assert described["data"]["split"] == {"seed": 3, "validation": 0.1, "test": 0.1, "near_duplicates": 0.8}
    assert described["data"]["pairs"] == {"rule": "mean", "weights": None, "margin": 0.0, "seed": 3}
    assert [each["scale"]["kind"] for each in described["objectives"]] == ["sigmoid", "sigmoid"]
    split = split_rows(read_rows(scored_rows), seed=3, validation=0.1, test=0.1)
    assert described["train_prompts"] == sorted(prompt_key(row.prompt) for row in split.train)
    held = {prompt_key(row.prompt) for row in [*split.validation, *split.test]}
    assert held and not held & set(described["train_prompts"])


def test_scales_are_fitted_on_the_training_part_alone(quick, rows, scored_rows, tmp_path):
    split = split_rows(read_rows(scored_rows), seed=0, validation=0.1, test=0.1)
    held = {row.id for row in [*split.validation, *split.test]}
    for row in rows:
        for each in row["completions"]:
            if row["id"] in held:
                each["scores"] = {"brevity": -1000.0, "cheer": 1000.0}
    folder = quick(data=rows_file(tmp_path / "rows.jsonl", rows))
    for objective in read_json(folder / "policy.json")["objectives"]:
        assert all(abs(knot) < 100 for knot in objective["scale"]["knots"])


def test_train_jsonl_has_every_step_with_finite_numbers(quick):
    folder = quick("policy", "epochs=2", "weight_dpo=1", "weight_contrast=1")
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    metrics = read_json(folder / "metrics.json")
    assert [each["step"] for each in lines] == list(range(1, metrics["steps"] + 1)) and metrics["steps"] >= 4
    keys = {
        "step", "epoch", "loss", "dpo", "dpo_accuracy", "likelihood", "contrast", "control_accuracy", "sense",
        "grad_norm", "lr", "tokens", "tokens_per_second",
    }  # fmt: skip
    for each in lines:
        assert each.keys() == keys and all(math.isfinite(value) for value in each.values())
    assert {"sense_mae_brevity", "sense_mae_cheer", "control_accuracy_validation"} <= metrics.keys()
    # two or three validation prompts are too few for an R2
    assert "sense_r2_brevity" not in metrics and metrics["sense_r2"].startswith("not told: it takes 20 validation")
    assert "not told: it takes 20" in (folder / "README.md").read_text()


def test_r2_is_told_of_twenty_validation_prompts(quick, rows, tmp_path):
    more = [{**row, "id": f"{row['id']}-{i}", "prompt": f"{row['prompt']} {i}"} for row in rows for i in range(3)]
    folder = quick("policy", "validation=0.4", data=rows_file(tmp_path / "rows.jsonl", more))
    metrics = read_json(folder / "metrics.json")
    assert metrics["validation_prompts"] >= 20 and "sense_r2" not in metrics
    assert {"sense_r2_brevity", "sense_r2_cheer"} <= metrics.keys()


def test_sensing_is_the_same_alone_in_a_batch_and_on_either_padding_side(quick):
    policy = load_policy(quick("policy", "lr=1e-2"))
    together = policy.sense(PROMPTS)
    assert [policy.sense([each])[0] for each in PROMPTS] == [pytest.approx(each, abs=1e-6) for each in together]
    for side in ("left", "right"):
        policy.tokenizer.padding_side = side
        assert policy.sense(PROMPTS) == together


def test_learning_lowers_the_loss(quick):
    folder = quick("policy", "epochs=15", "lr=1e-2")
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    assert lines[-1]["likelihood"] < 0.8 * lines[0]["likelihood"]


# --- seeds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sga", "dpo", "sft"])
def test_the_same_seed_gives_the_same_bytes_and_another_other_bytes(quick, method):
    settings = ("lora_dropout=0.1", *(["weight_contrast=1", "head.dropout=0.1"] if method == "sga" else []))
    one = quick("one", *settings, method=method)
    torch.manual_seed(123)
    two = quick("two", *settings, method=method)
    other = quick("other", *settings, method=method, seed=1)
    files = ["adapter/adapter_model.safetensors", *(["head.safetensors"] if method == "sga" else [])]
    for name in files:
        assert (one / name).read_bytes() == (two / name).read_bytes()
        assert (one / name).read_bytes() != (other / name).read_bytes()
    assert (one / "policy.json").read_bytes() == (two / "policy.json").read_bytes()


AGAIN = """
import sys
from paretune.methods import train
train("sga", sys.argv[1], sys.argv[2], sys.argv[3], settings=sys.argv[4:])
"""
TIMED = {"seconds", "tokens_per_second", "peak_memory_mib"}
"""Figures of a run that are of its machine and hour."""


def untimed(path):
    """The text of a file without what tells the time."""
    if path.name == "train.jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [{key: value for key, value in each.items() if key not in TIMED} for each in lines]
    if path.name == "metrics.json":
        return {key: value for key, value in read_json(path).items() if key not in TIMED}
    if path.name == "README.md":
        return [line for line in path.read_text().splitlines() if not any(f"| {key} |" in line for key in TIMED)]
    return path.read_bytes()


def test_the_same_seed_gives_the_same_folder_in_another_process_but_for_times(quick, scored_rows, tiny_llama, tmp_path):
    settings = ("dtype=float32", "epochs=1", "batch_size=10", "head.width=16", "head.depth=1", "head_epochs=3")
    one, two = quick("one", *settings), tmp_path / "two"
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, str(scored_rows), str(tiny_llama), str(two), "lora_r=4", *settings],
        env=os.environ | {"PYTHONHASHSEED": "5", "OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    files = sorted(str(path.relative_to(one)) for path in one.rglob("*") if path.is_file())
    assert files == sorted(str(path.relative_to(two)) for path in two.rglob("*") if path.is_file())
    differing = {name for name in files if (one / name).read_bytes() != (two / name).read_bytes()}
    assert differing <= {"train.jsonl", "metrics.json", "README.md"}
    for name in files:
        assert untimed(one / name) == untimed(two / name), name


# --- rows that do not serve ---------------------------------------------------------------------------------------


def test_ties_and_long_rows_are_dropped_and_counted(rows, tmp_path, tiny_llama, quick):
    for row in rows[:3]:
        for each in row["completions"]:
            each["scores"] = {"brevity": -5.0, "cheer": 0.4}
    rows[3]["prompt"] = "long " * 400
    rows[4]["completions"] = rows[4]["completions"][:1]
    rows[5]["completions"][0]["text"] = "long " * 400
    data = rows_file(tmp_path / "rows.jsonl", rows)
    settings = ["dtype=float32", "epochs=1", "lora_r=4", "head.width=8", "head_epochs=0", "test=0", "max_length=400"]
    result = train("sga", data, str(tiny_llama), tmp_path / "p", settings=settings)
    assert result.dropped == {"ties": 3, "too_few": 1, "prompts_too_long": 1, "pairs_too_long": 1}
    assert (result.rows, result.pairs) == (24, 18)
    assert read_json(tmp_path / "p" / "metrics.json")["dropped"] == result.dropped
    with pytest.raises(InputError, match=r"does not fit|do not fit"):
        train("sga", data, str(tiny_llama), tmp_path / "q", settings=settings, strict=True)
    assert not (tmp_path / "q").exists()


def test_bad_rows_are_dropped_and_counted_when_asked(rows, tmp_path, quick):
    data = tmp_path / "rows.jsonl"
    data.write_text("{broken\n" + "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="line 1"):
        quick("one", data=data)
    assert read_json(quick("two", data=data, skip_bad_rows=True) / "metrics.json")["dropped"] == {"bad_rows": 1}


def test_missing_scores_are_masked(rows, tmp_path, quick):
    for row in rows[::2]:
        for each in row["completions"]:
            each["scores"]["cheer"] = None
    folder = quick(data=rows_file(tmp_path / "rows.jsonl", rows))
    tensors = load_file(str(folder / "head.safetensors"))
    assert all(torch.isfinite(each).all() for each in tensors.values())


def test_preference_rows_without_scores_train_dpo_and_sft_but_not_sga(tmp_path, quick):
    rows = [{"prompt": f"What is {i}?", "chosen": f"It is {i}.", "rejected": "No idea."} for i in range(12)]
    data = rows_file(tmp_path / "rows.jsonl", rows)
    for method in ("dpo", "sft"):
        policy = load_policy(quick(method, method=method, data=data))
        assert policy.objectives == [] and policy.mean_profile == {}
        assert policy.generate(PROMPTS, condition="none", max_new_tokens=2)
    with pytest.raises(InputError, match="the rows have no scores, and 'sga' needs them"):
        quick("sga", data=data)


def test_sft_takes_rows_with_a_single_completion(tmp_path, quick):
    rows = [{"prompt": f"What is {i}?", "completion": f"It is {i}."} for i in range(12)]
    data = rows_file(tmp_path / "rows.jsonl", rows)
    assert load_policy(quick("sft", method="sft", data=data)).method == "sft"
    with pytest.raises(InputError, match="no row is left to train on"):
        quick("dpo", method="dpo", data=data)


def test_rows_whose_completions_tie_train_what_needs_no_winner(tmp_path, quick):
    answers = [{"text": "Yes.", "scores": {"a": 0.2, "b": 0.8}}, {"text": "No.", "scores": {"a": 0.8, "b": 0.2}}]
    rows = [{"prompt": f"What is {i}?", "completions": answers} for i in range(12)]
    data = rows_file(tmp_path / "rows.jsonl", rows)
    for method in ("ric", "steer"):
        assert "ties" not in read_json(quick(method, method=method, data=data) / "metrics.json")["dropped"]
    with pytest.raises(InputError, match="no row is left to train on; dropped: 11 ties"):
        quick("dpo", method="dpo", data=data)


def test_a_choice_of_objectives(quick):
    assert load_policy(quick(objectives=["cheer"])).names == ["cheer"]
    with pytest.raises(InputError, match=r"no row has a score for objective 'cheeer'. Did you mean 'cheer'"):
        quick("two", objectives=["cheeer"])


# --- failure leaves nothing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["lr=1e30", "epochs=4", "schedule=constant", "clip=1e30"], "training stopped before the step: .* not finite"),
        (["lora_layers=9"], "field 'lora_layers'|the model has 2 layers"),
        (["max_length=5"], "no row is left to train on"),
        (["validation=0.5", "test=0.49", "epochs=1.5"], "field 'epochs'"),
        (["dtype=float31"], "unknown dtype"),
    ],
)
def test_what_cannot_be_trained_leaves_nothing(quick, tmp_path, settings, message):
    with pytest.raises(InputError, match=message):
        quick("policy", *settings)
    assert names(tmp_path) == []


def test_an_interrupt_leaves_only_checkpoints(quick, tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["paretune.methods.setup"], "validate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        quick()
    assert names(tmp_path) == [".policy.checkpoints"]


def test_a_poisoned_base_model_stops_before_the_first_step(quick, tmp_path, tiny_llama):
    from safetensors.torch import save_file

    shutil.copytree(tiny_llama, tmp_path / "m")
    tensors = {name: each.clone() for name, each in load_file(str(tiny_llama / "model.safetensors")).items()}
    tensors["model.norm.weight"].fill_(math.nan)
    (tmp_path / "m" / "model.safetensors").unlink()
    save_file(tensors, str(tmp_path / "m" / "model.safetensors"), metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"training stopped before the step: .*loss"):
        quick(model=tmp_path / "m")
    assert names(tmp_path) == ["m"]


def test_an_existing_folder_is_kept(quick, tmp_path):
    foreign = tmp_path / "policy"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years")
    for overwrite in (False, True):
        with pytest.raises(InputError, match="was not written by paretune"):
            quick(overwrite=overwrite)
    assert names(foreign) == ["thesis.tex"]
    ours = quick("ours")
    before = (ours / "policy.json").read_bytes()
    with pytest.raises(InputError, match="--overwrite"):
        quick("ours", "seed=5")
    with pytest.raises(InputError, match="not finite"):
        quick("ours", "lr=1e30", "epochs=4", "schedule=constant", "clip=1e30", overwrite=True)
    assert (ours / "policy.json").read_bytes() == before
    quick("ours", "seed=5", overwrite=True)
    assert read_json(ours / "policy.json")["config"]["seed"] == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "sgaa"}, "unknown method 'sgaa'"),
        ({"model": "/no/such/model"}, "no such model folder"),
        ({"data": "/no/such/rows.jsonl"}, "/no/such/rows.jsonl"),
        ({"config": "/no/such/config.yaml"}, "no such config file"),
        ({"settings": ["lrr=1"]}, "unknown setting 'lrr'. Did you mean 'lr'"),
    ],
)
def test_bad_requests(scored_rows, tiny_llama, tmp_path, change, message):
    values = {"method": "sga", "data": scored_rows, "model": str(tiny_llama), "out": tmp_path / "p"} | change
    with pytest.raises(InputError, match=message):
        train(**values)
    assert names(tmp_path) == []


def test_scores_that_never_differ_have_no_scale(rows, tmp_path, quick):
    for row in rows:
        for each in row["completions"]:
            each["scores"]["cheer"] = 0.5
    with pytest.raises(InputError, match=r"scores of objective 'cheer' equal 0.5, so no scale can be fitted"):
        quick(data=rows_file(tmp_path / "rows.jsonl", rows))


@pytest.mark.parametrize("method", ["sft", "dpo", "soups"])
def test_a_policy_that_was_not_trained_on_profiles_takes_none(quick, method):
    policy = load_policy(quick("plain", method=method))
    name = policy.names[0]
    told = f"trained by '{method}' was not trained on profiles"
    for asked in (
        {"pins": {name: 0.9}},
        {"pins": [{name: 0.9}]},
        {"condition": {name: 0.9}},
        {"condition": [{name: 0.9}]},
        {"condition": "ones"},
        {"condition": "mean"},
    ):
        with pytest.raises(InputError, match=told):
            policy.generate(["Hi"], max_new_tokens=2, **asked)
    plain = policy.generate(["Hi"], max_new_tokens=2)
    for nothing in ({"condition": "none"}, {"condition": [{}]}, {"pins": {}}, {"pins": [None]}):
        assert policy.generate(["Hi"], max_new_tokens=2, **nothing) == plain
