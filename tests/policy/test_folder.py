"""The policy folder: every tensor comes back, nothing executable is in it, and a folder that does not fit says why."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from paretune.errors import InputError
from paretune.files import read_json
from paretune.policy import folder as folder_room
from paretune.policy import load_policy, save_policy
from paretune.policy.backbone import fingerprint, load_backbone
from paretune.policy.folder import load_tokenizer
from paretune.policy.head import HeadConfig, SensingHead
from paretune.profile import Objective, Scale
from paretune.training.head_fit import fit_head
from tiny_models import make_tiny


@pytest.fixture
def saved(tiny_llama, make_policy, tmp_path):
    """A policy in memory and the folder it was saved to."""
    policy = make_policy(tiny_llama, style="levels", snap="paper")
    policy.head.set_statistics(torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6]), start_at_mean=False)
    save_policy(policy, tmp_path / "policy", metrics={"loss": 0.5, "steps": 3, "dropped": {"ties": 1}})
    return policy, tmp_path / "policy"


def tensors_of(path):
    """Tensors of a safetensors file, copied out of it: these tests write over the file."""
    return {name: each.clone() for name, each in load_file(str(path)).items()}


def edit(folder, **changes):
    """Change fields, and leave the digest out, with which no change would come further than to the seal."""
    described = read_json(folder / "policy.json") | {"digest": "GONE"} | changes
    (folder / "policy.json").write_text(json.dumps({key: value for key, value in described.items() if value != "GONE"}))


# --- what is saved ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_qwen", "tiny_gpt2"])
def test_every_tensor_comes_back(request, make_policy, tmp_path, prompts, fixture):
    policy = make_policy(request.getfixturevalue(fixture))
    save_policy(policy, tmp_path / "p", metrics={})
    loaded = load_policy(tmp_path / "p")
    before, after = policy.peft.state_dict(), loaded.peft.state_dict()
    assert before.keys() == after.keys() and sum("lora" in name for name in before) >= 8
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    before, after = policy.head.state_dict(), loaded.head.state_dict()
    assert before.keys() == after.keys() and {"target_mean", "target_std"} < before.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    assert loaded.sense(prompts) == policy.sense(prompts)
    options = dict(max_new_tokens=8, temperature=1.0, seed=3)
    assert loaded.generate(prompts, **options) == policy.generate(prompts, **options)
    assert not loaded.causal.training and not loaded.head.training


def test_a_low_precision_policy_comes_back_in_its_precision(tiny_llama, make_policy, tmp_path, prompts):
    policy = make_policy(tiny_llama, dtype="bfloat16")
    save_policy(policy, tmp_path / "p", metrics={})
    loaded = load_policy(tmp_path / "p")
    for (name, one), (other, two) in zip(policy.peft.named_parameters(), loaded.peft.named_parameters(), strict=True):
        assert (name, one.dtype) == (other, two.dtype) and torch.equal(one, two)
    assert loaded.sense(prompts) == policy.sense(prompts)
    wide = load_policy(tmp_path / "p", dtype="float32")
    assert {each.dtype for each in wide.peft.parameters()} == {torch.float32}


@pytest.mark.parametrize("trained", ["float32", "bfloat16"])
def test_every_precision_knows_its_base_model_and_refuses_another(tiny_llama, make_policy, tmp_path, trained):
    policy = make_policy(tiny_llama, dtype=trained)
    policy.metadata["base_fingerprint"] = fingerprint(load_backbone(str(tiny_llama), dtype=trained)[0])
    save_policy(policy, tmp_path / "p", metrics={})
    other = make_tiny(tmp_path / "other", "llama", seed=5)
    for dtype in ("float32", "bfloat16", "float16", "float64"):
        assert str(load_policy(tmp_path / "p", dtype=dtype).causal.dtype) == f"torch.{dtype}"
        with pytest.raises(InputError, match="another base model"):
            load_policy(tmp_path / "p", base=str(other), dtype=dtype)


def test_a_precision_that_does_not_exist_is_not_blamed_on_the_base_model(saved):
    with pytest.raises(InputError, match="unknown dtype 'float8'") as refused:
        load_policy(saved[1], dtype="float8")
    assert "base model" not in str(refused.value)


def test_what_belongs_to_a_policy_comes_back(saved, prompts):
    policy, folder = saved
    loaded = load_policy(folder)
    assert loaded.objectives == policy.objectives
    assert (loaded.method, loaded.base) == ("sga", policy.base)
    assert (loaded.renderer.style, loaded.renderer.snap) == ("levels", "paper")
    assert loaded.mean_profile == pytest.approx({"brevity": 0.1, "cheer": 0.2, "rude_words": 0.3})
    assert loaded.head.config == policy.head.config
    assert loaded.metadata["data"] == {"path": "rows.jsonl"}
    for messages in prompts:
        assert loaded.renderer.prefix(messages) == policy.renderer.prefix(messages)
        profile = {"cheer": 0.3, "brevity": 1.0}
        assert loaded.renderer.suffix(messages, profile) == policy.renderer.suffix(messages, profile)


def test_the_folder_holds_the_documented_files_and_nothing_executable(saved):
    _, folder = saved
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {
        ".paretune",
        "README.md",
        "adapter/adapter_config.json",
        "adapter/adapter_model.safetensors",
        "chat_template.jinja",
        "head.safetensors",
        "metrics.json",
        "policy.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            path.read_text(encoding="utf-8")  # all else is text
    for name in ("policy.json", "metrics.json", "adapter/adapter_config.json"):
        json.loads((folder / name).read_text(), parse_constant=pytest.fail)  # called for NaN and infinities


def test_the_adapter_is_a_plain_peft_adapter(saved, tiny_llama):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy, folder = saved
    targets = read_json(folder / "adapter" / "adapter_config.json")["target_modules"]
    assert targets == sorted(targets) and len(targets) > 1  # PEFT writes a set, in the order of the day
    names = load_file(str(folder / "adapter" / "adapter_model.safetensors")).keys()
    assert all("lora_A" in name or "lora_B" in name for name in names)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_llama), str(folder / "adapter")).eval()
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, policy.causal(ids).logits)


def test_the_same_policy_gives_the_same_bytes(saved, tmp_path):
    policy, folder = saved
    save_policy(policy, tmp_path / "again", metrics={"loss": 0.5, "steps": 3, "dropped": {"ties": 1}})
    for path in folder.rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(folder)).read_bytes(), path.name


def test_the_model_card_names_base_objectives_and_figures(saved):
    policy, folder = saved
    card = (folder / "README.md").read_text()
    for text in (policy.base, "| rude_words | minimise | `column:rude` | fixed |", "| loss | 0.5 |", "load_policy"):
        assert text in card


def test_a_save_that_fails_leaves_nothing(saved, tmp_path):
    policy, _ = saved
    with pytest.raises(ValueError, match="JSON"):
        save_policy(policy, tmp_path / "bad", metrics={"loss": float("nan")})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["policy"]


def test_an_existing_policy_is_kept(saved):
    policy, folder = saved
    with pytest.raises(InputError, match="--overwrite"):
        save_policy(policy, folder, metrics={})
    save_policy(policy, folder, metrics={"new": 1}, overwrite=True)
    assert read_json(folder / "metrics.json") == {"new": 1}


def test_a_policy_without_head_or_adapter(tiny_gpt2, make_policy, tmp_path, prompts):
    policy = make_policy(tiny_gpt2)
    policy.head, policy.peft, policy.causal = None, None, policy.peft.unload()
    policy.metadata["mean_profile"] = {"brevity": 0.1, "cheer": 0.2, "rude_words": 0.3}
    save_policy(policy, tmp_path / "p", metrics={})
    assert not (tmp_path / "p" / "head.safetensors").exists() and not (tmp_path / "p" / "adapter").exists()
    loaded = load_policy(tmp_path / "p")
    assert not loaded.has_head and loaded.peft is None
    assert loaded.mean_profile == policy.metadata["mean_profile"]
    assert loaded.generate(prompts[:2], condition="none", max_new_tokens=4) == policy.generate(
        prompts[:2], condition="none", max_new_tokens=4
    )


def test_the_base_model_may_have_moved(saved, tmp_path, tiny_llama, prompts):
    policy, folder = saved
    shutil.copytree(tiny_llama, tmp_path / "elsewhere")
    edit(folder, base_model="/no/longer/here")
    with pytest.raises(InputError, match="its base model '/no/longer/here' no such model folder; say where it is"):
        load_policy(folder)
    assert load_policy(folder, base=str(tmp_path / "elsewhere")).sense(prompts) == policy.sense(prompts)


# --- what is refused ----------------------------------------------------------------------------------------------


def test_no_folder_and_no_policy(tmp_path):
    with pytest.raises(InputError, match="gone: no such policy folder"):
        load_policy(tmp_path / "gone")
    with pytest.raises(InputError, match=r"it has no policy\.json"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2, this version of paretune reads format 1"),
        ({"format": "GONE"}, "has format None"),
        ({"method": 3}, "field 'method': must be a str"),
        ({"objectives": "GONE"}, "field 'objectives': must be a list"),
        ({"objectives": []}, "no objective is given"),
        ({"objectives": [{"name": "a", "sclae": {}}]}, "Did you mean 'scale'"),
        ({"objectives": [{"name": "a"}, {"name": "a"}]}, "two objectives are called 'a'"),
        ({"renderer": {"style": "levels", "extra": 1}}, "unknown key 'extra'"),
        ({"renderer": {"style": "level"}}, "Did you mean 'levels'"),
        ({"head": {"width": 16, "dpeth": 1}}, "Did you mean 'depth'"),
        ({"head": None}, "whose policy.json has no head"),
        ({"dtype": "int4"}, "unknown dtype 'int4'"),
    ],
)
def test_a_policy_json_that_does_not_fit(saved, changes, message):
    edit(saved[1], **changes)
    with pytest.raises(InputError, match=message):
        load_policy(saved[1])


# --- the seal -----------------------------------------------------------------------------------------------------


def leaves(value, path=()):
    """Paths of all values inside, whole objects and lists among them; of a long list the ends."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    elif isinstance(value, list):
        for at in sorted({0, len(value) - 1} if value else ()):
            yield from leaves(value[at], (*path, at))


def changed(described, path, value):
    copy = json.loads(json.dumps(described))
    inside = copy
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return copy


def test_every_field_that_was_edited_is_named_before_the_model_is_loaded(saved, monkeypatch):
    _, folder = saved
    path = folder / "policy.json"
    described = read_json(path)
    monkeypatch.setattr("paretune.policy.folder.load_base", lambda *_: pytest.fail("the model was loaded"))
    objectives = described["objectives"]
    edits = {
        "order": ("objectives", [objectives[1], objectives[0], objectives[2]]),
        "a phrase": ("objectives", changed(objectives, (0, "phrases", 0), "Be endless.")),
        "a scale turned round": ("objectives", changed(objectives, (1, "scale", "reverse"), True)),
        "a direction": ("objectives", changed(objectives, (2, "direction"), "maximise")),
        "the style": ("renderer", {"style": "scores", "snap": "paper"}),
        "the read-out": ("head", described["head"] | {"readout": "mean"}),
        "the layer": ("head", described["head"] | {"layer": 0.5}),
        "the method": ("method", "dpo"),
        "the base": ("base_fingerprint", "0" * 16),
        "the precision": ("dtype", "bfloat16"),
        "the tokenizer": ("tokenizer", described["tokenizer"] | {"ids": "0" * 16}),
    }
    for name, (field, value) in edits.items():
        path.write_text(json.dumps(described | {field: value}))
        what = "is not what it was" if field in described else "was added"
        with pytest.raises(InputError, match=rf"policy\.json, field '{field}': {what}: .* train again"):
            load_policy(folder)
            pytest.fail(name)
    path.write_text(json.dumps({key: value for key, value in described.items() if key != "data"}))
    with pytest.raises(InputError, match="field 'data': is gone"):
        load_policy(folder)


def test_what_may_change_is_not_sealed_and_an_old_folder_has_no_seal(saved, tiny_llama, tmp_path, prompts):
    policy, folder = saved
    path = folder / "policy.json"
    described = read_json(path)
    shutil.copytree(tiny_llama, tmp_path / "moved")
    changes = {"base_model": str(tmp_path / "moved"), "versions": {"paretune": "9"}}
    path.write_text(json.dumps(dict(reversed((described | changes).items())), indent=None))  # in any order and layout
    assert load_policy(folder).sense(prompts) == policy.sense(prompts)
    del described["digest"]
    path.write_text(json.dumps(described | {"renderer": {"style": "scores", "snap": "none"}}))
    assert load_policy(folder).renderer.style == "scores"


@pytest.mark.parametrize("digest", [5, "x", [], {"method": 3}])
def test_a_seal_that_is_none(saved, digest):
    edit(saved[1], digest=digest)
    with pytest.raises(InputError, match=r"policy\.json, field"):
        load_policy(saved[1])


def test_a_saved_folder_can_be_saved_again(saved, tmp_path):
    load = load_policy(saved[1])
    save_policy(load, tmp_path / "again", metrics={})
    assert read_json(tmp_path / "again" / "policy.json") == read_json(saved[1] / "policy.json")


WRONG = [None, "x", "", [], [3], -1, 1.5, 1e308, True, {}, {"kind": "x"}, int("9" * 400), "\x00"]


def test_a_value_of_any_other_type_anywhere_is_an_input_error_or_loads(make_policy, tiny_llama, tmp_path, monkeypatch):
    policy = make_policy(tiny_llama)
    policy.peft, policy.causal = None, policy.peft.unload()
    means = {"brevity": 0.5, "cheer": 0.5, "rude_words": 0.5}
    policy.metadata |= {
        "mean_profile": means,
        "train_prompts": ["a" * 16],
        "base_fingerprint": "b",
        "config": {"lr": 1},
    }
    del policy.metadata["adapter"]
    knots = Objective("knots", scale=Scale.fit("quantile", range(200)))
    policy.objectives[2] = replace(policy.objectives[2], scale=knots.scale, scale_kind="quantile")
    folder = tmp_path / "p"
    save_policy(policy, folder, metrics={})
    # all the same each time, and slow; what it is given is looked at as ever
    tokenizer = load_tokenizer(folder)
    monkeypatch.setattr("paretune.policy.folder.load_tokenizer", lambda folder: tokenizer)
    monkeypatch.setattr("paretune.policy.tokenizer.tokenizer_fingerprint", lambda *_: described["tokenizer"])
    real = folder_room.load_backbone

    def load(source, *, dtype, device):
        if source != policy.base or dtype != "float32":
            return real(source, dtype=dtype, device=device)
        return policy.causal, None

    monkeypatch.setattr("paretune.policy.folder.load_backbone", load)
    described = read_json(folder / "policy.json") | {"base_fingerprint": fingerprint(policy.causal)}
    del described["digest"]
    told = loaded = 0
    for path in leaves(described):
        for value in WRONG:
            try:
                text = json.dumps(changed(described, path, value))
                (folder / "policy.json").write_text(text)
                load_policy(folder).sense(["Hi"])
                loaded += 1
            except InputError:
                told += 1
            except Exception as error:
                raise AssertionError(f"{path} = {value!r:.50}") from error
    assert told > 400 and loaded > 50
    (folder / "policy.json").write_text('{"format": ' + "9" * 5000 + "}")
    with pytest.raises(InputError, match="is JSON that cannot be read"):
        load_policy(folder)


@pytest.mark.parametrize("size", [{"width": 60_000}, {"width": 10**9}, {"depth": 99}, {"depth": 10**9}, {"width": 1.5}])
def test_a_head_of_another_size_is_told_before_it_is_made(saved, size):
    edit(saved[1], head=read_json(saved[1] / "policy.json")["head"] | size)
    with pytest.raises(InputError, match=r"does not belong|head: (width|depth) must be"):
        load_policy(saved[1])


@pytest.mark.parametrize("folder", [5, None, ["x"], b"x"])
def test_a_policy_that_is_no_folder_name(folder):
    with pytest.raises(InputError, match="a policy is a folder, found"):
        load_policy(folder)


@pytest.mark.parametrize(("text", "message"), [("[]", "must be a JSON object"), ("{", "line 1: is not JSON")])
def test_a_broken_policy_json(saved, text, message):
    (saved[1] / "policy.json").write_text(text)
    with pytest.raises(InputError, match=message):
        load_policy(saved[1])


def test_the_head_is_never_re_initialised(saved):
    _, folder = saved
    path = folder / "head.safetensors"
    tensors = tensors_of(path)
    described = read_json(folder / "policy.json")
    edit(folder, objectives=described["objectives"][:2])
    with pytest.raises(InputError, match=r"senses 3 objective\(s\), but policy\.json names 2: brevity, cheer"):
        load_policy(folder)
    edit(folder, objectives=described["objectives"], head={**described["head"], "width": 8})
    with pytest.raises(InputError, match="does not belong"):
        load_policy(folder)
    edit(folder, head=described["head"])
    save_file({name: each for name, each in tensors.items() if name != "target_mean"}, str(path))
    with pytest.raises(InputError, match="target_mean"):
        load_policy(folder)
    save_file({**tensors, "stray": torch.zeros(1)}, str(path))
    with pytest.raises(InputError, match="stray"):
        load_policy(folder)
    path.write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"head\.safetensors: has a header of \d+ bytes"):
        load_policy(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"is missing, though policy.json describes a head"):
        load_policy(folder)


def test_an_adapter_that_is_missing_or_of_another_model(saved, tiny_gpt2):
    _, folder = saved
    with pytest.raises(InputError, match="does not fit the base model"):
        load_policy(folder, base=str(tiny_gpt2))
    path = folder / "adapter" / "adapter_model.safetensors"
    tensors = tensors_of(path)
    path.write_bytes(b"no tensors")
    with pytest.raises(InputError, match=r"adapter_model\.safetensors: has a header of \d+ bytes"):
        load_policy(folder)
    first = next(iter(tensors))
    save_file({name: each for name, each in tensors.items() if name != first}, str(path))
    with pytest.raises(InputError, match=f"1 tensors are missing and 0 unknown, such as {first}"):
        load_policy(folder)  # PEFT itself only warns, and goes on with fresh weights
    save_file({**tensors, "stray": torch.zeros(1)}, str(path))
    with pytest.raises(InputError, match="0 tensors are missing and 1 unknown, such as stray"):
        load_policy(folder)
    path.unlink()
    with pytest.raises(InputError, match=r"has no adapter_model\.safetensors"):
        load_policy(folder)


def test_an_adapter_that_is_weighed_otherwise_is_refused(saved, tiny_llama):
    path = saved[1] / "adapter" / "adapter_config.json"
    config = read_json(path)
    path.write_text(json.dumps(config | {"lora_alpha": 2 * config["lora_alpha"]}))
    with pytest.raises(InputError, match=r"adapter_config\.json: is not what it was when the folder was saved"):
        load_policy(saved[1])
    path.write_text(json.dumps(config | {"base_model_name_or_path": "elsewhere", "peft_version": "9"}))
    load_policy(saved[1])
    edit(saved[1], adapter_config="GONE")  # of a version that kept no digest of it
    path.write_text(json.dumps(config | {"lora_alpha": 2 * config["lora_alpha"]}))
    load_policy(saved[1])


def test_a_pickled_adapter_is_not_read(saved):
    _, folder = saved
    path = folder / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(str(path)), folder / "adapter" / "adapter_model.bin")
    path.unlink()
    with pytest.raises(InputError, match=r"adapter_model\.bin: is a \.bin file, which can run code"):
        load_policy(folder)
    (folder / "adapter" / "adapter_model.bin").unlink()
    with pytest.raises(InputError, match=r"has no adapter_model\.safetensors"):
        load_policy(folder)


def test_a_tokenizer_that_cannot_be_loaded(saved):
    _, folder = saved
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="its tokenizer cannot be loaded"):
        load_policy(folder)


def test_not_finite_weights_are_refused(saved):
    _, folder = saved
    for name in ("adapter/adapter_model.safetensors", "head.safetensors"):
        path = folder / name
        tensors = tensors_of(path)
        broken = {key: torch.full_like(each, float("nan")) for key, each in tensors.items()}
        save_file(broken, str(path), metadata={"format": "pt"})
        with pytest.raises(InputError, match="holds NaN or infinity"):
            load_policy(folder)
        save_file(tensors, str(path), metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter": False}, "the folder has one"),
        ({"adapter": 1}, "must be a bool"),
        ({"head": 5}, "policy.json"),
        ({"mean_profile": 5}, "mean_profile is a mapping"),
        ({"mean_profile": {"zz": 0.5}}, "unknown objective 'zz'"),
        ({"base_fingerprint": "0" * 16}, "another base model"),
    ],
)
def test_a_tampered_description_is_refused(saved, changes, message):
    _, folder = saved
    edit(folder, **changes)
    with pytest.raises(InputError, match=message):
        load_policy(folder)


# --- head, objectives and profile belong together -----------------------------------------------------------------


def test_a_head_of_another_number_of_objectives_says_both(saved):
    _, folder = saved
    described = read_json(folder / "policy.json")
    more = [*described["objectives"], {**described["objectives"][0], "name": "fourth"}]
    edit(folder, objectives=more)
    wanted = r"head\.safetensors: senses 3 objective\(s\), but policy\.json names 4: brevity, cheer, rude_words, fourth"
    with pytest.raises(InputError, match=wanted):
        load_policy(folder)


@pytest.mark.parametrize("kind", ["regression", "binned", "gaussian"])
def test_every_kind_of_head_comes_back_with_its_intervals(tiny_llama, make_policy, tmp_path, prompts, kind):
    policy = make_policy(tiny_llama)
    torch.manual_seed(0)
    config = HeadConfig(kind, 16, 1, hidden_dropout=0.1, standardise_input=True, skip=True, bins=7)
    policy.head = SensingHead(32, 3, config)
    features, targets = torch.randn(40, 32), torch.rand(40, 3)
    fit_head(policy.head, features, targets, None, epochs=2, lr=1e-2, seed=0, standardise=True, folds=2)
    save_policy(policy, tmp_path / "p", metrics={})
    loaded = load_policy(tmp_path / "p")
    assert loaded.head.config == config and bool(loaded.head.calibrated)
    before, after = policy.head.state_dict(), loaded.head.state_dict()
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert loaded.predict(prompts, {"cheer": 0.2}) == policy.predict(prompts, {"cheer": 0.2})
    edit(tmp_path / "p", head={**config.to_dict(), "kind": "regression" if kind != "regression" else "gaussian"})
    with pytest.raises(InputError, match=r"head\.safetensors: does not belong to 3 objective\(s\), a (regr|gauss)"):
        load_policy(tmp_path / "p")


def test_a_folder_from_before_intervals_loads_without_them(saved, prompts):
    policy, folder = saved
    path = folder / "head.safetensors"
    tensors = tensors_of(path)
    old = {name: each for name, each in tensors.items() if name not in ("residual_cov", "conformal", "calibrated")}
    assert set(old) == {"target_mean", "target_std", *(name for name in tensors if name.startswith("layers."))}
    save_file(old, str(path))
    edit(folder, head={"width": 16, "depth": 1, "dropout": 0.1, "input_norm": False})
    loaded = load_policy(folder)
    assert loaded.sense(prompts) == policy.sense(prompts)
    assert not loaded.head.calibrated and loaded.predict(prompts)[0].interval is None
    save_file({name: each for name, each in tensors.items() if name != "conformal"}, str(path))
    with pytest.raises(InputError, match="conformal"):
        load_policy(folder)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"brevity": float("nan"), "cheer": 0.5, "rude_words": 0.5}, r"'brevity' must lie in \[0, 1\], found nan"),
        ({"brevity": 1.5, "cheer": 0.5, "rude_words": 0.5}, r"'brevity' must lie in \[0, 1\], found 1.5"),
        ({"brevity": 0.5, "cheer": 0.5}, "no value for rude_words"),
        ({"brevity": "high", "cheer": 0.5, "rude_words": 0.5}, r"'brevity' must be a number in \[0, 1\], found 'high'"),
    ],
)
def test_a_mean_profile_that_is_none(saved, profile, message):
    _, folder = saved
    edit(folder, mean_profile=profile)
    with pytest.raises(InputError, match=message):
        load_policy(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1])
def test_a_condition_or_pin_that_is_no_profile(saved, value):
    policy, _ = saved
    for given in ({"condition": {"cheer": value}}, {"pins": {"cheer": value}}):
        with pytest.raises(InputError, match=r"'cheer' must lie in \[0, 1\], found"):
            policy.generate(["Hi"], max_new_tokens=2, **given)
    with pytest.raises(InputError, match=r"pin: 'cheer' must lie in \[0, 1\], found"):
        policy.sense(["Hi"], {"cheer": value})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("target_mean", lambda each: each + 5),
        ("conformal", lambda each: -each),
        ("residual_cov", lambda each: each * 0),
    ],
)
def test_impossible_fitted_values_are_refused(make_policy, tiny_llama, tmp_path, name, change):
    from safetensors.torch import load_file, save_file

    save_policy(make_policy(tiny_llama), tmp_path / "p", metrics={})
    tensors = load_file(tmp_path / "p" / "head.safetensors")
    tensors[name] = change(tensors[name])
    save_file(tensors, tmp_path / "p" / "head.safetensors")
    with pytest.raises(InputError, match=f"'{name}' holds values that fitting a head cannot give"):
        load_policy(tmp_path / "p")
