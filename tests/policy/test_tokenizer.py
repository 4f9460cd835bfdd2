"""The tokenizer of a policy folder: files that were changed are told, by part and file, and ids fit the base model."""

from __future__ import annotations

import json

import pytest

from paretune.errors import InputError
from paretune.files import read_json
from paretune.policy import load_policy, save_policy
from paretune.policy.tokenizer import tokenizer_fingerprint
from tiny_models import tiny_tokenizer


@pytest.fixture
def saved(tiny_llama, make_policy, tmp_path):
    """A policy in memory and the folder it was saved to."""
    policy = make_policy(tiny_llama)
    save_policy(policy, tmp_path / "policy", metrics={})
    return policy, tmp_path / "policy"


def edit(folder, **changes):
    """Change fields, and leave the digest out, with which no change would come further than to the seal."""
    described = read_json(folder / "policy.json") | {"digest": "GONE"} | changes
    (folder / "policy.json").write_text(json.dumps({key: value for key, value in described.items() if value != "GONE"}))


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_qwen", "tiny_gpt2"])
def test_the_tokenizers_fingerprint_survives_saving(request, make_policy, tmp_path, fixture):
    policy = make_policy(request.getfixturevalue(fixture))
    save_policy(policy, tmp_path / "p", metrics={})
    described = read_json(tmp_path / "p" / "policy.json")
    assert described["tokenizer"] == tokenizer_fingerprint(policy.tokenizer, tmp_path / "p")
    loaded = load_policy(tmp_path / "p")
    assert "tokenizer" not in loaded.metadata
    save_policy(loaded, tmp_path / "again", metrics={})
    assert read_json(tmp_path / "again" / "policy.json")["tokenizer"] == described["tokenizer"]


def test_a_folder_without_a_fingerprint_loads_as_before(saved, prompts):
    policy, folder = saved
    edit(folder, tokenizer="GONE")
    assert load_policy(folder).sense(prompts) == policy.sense(prompts)


def test_a_fingerprint_of_before_the_merges_were_in_it_passes(saved, prompts):
    policy, folder = saved
    known = read_json(folder / "policy.json")["tokenizer"]
    edit(folder, tokenizer={part: known[part] for part in ("size", "ids", "special", "template")})
    assert load_policy(folder).sense(prompts) == policy.sense(prompts)


def test_a_tokenizer_file_laid_out_otherwise_passes(saved, prompts):
    policy, folder = saved
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    assert load_policy(folder).sense(prompts) == policy.sense(prompts)


def swap_two_ids(folder):
    """Two tokens of the vocabulary change places."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["e"], vocabulary["t"] = vocabulary["t"], vocabulary["e"]
    path.write_text(json.dumps(data))


def forget_a_merge(folder):
    """The tokenizer cuts some words differently; the vocabulary stays."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["merges"] = data["model"]["merges"][1:]
    path.write_text(json.dumps(data))


def swap_two_rare_merges(folder):
    """Two merges that no everyday text shows at work change their order; the vocabulary stays."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    merges = data["model"]["merges"]
    merges[-1], merges[-2] = merges[-2], merges[-1]
    path.write_text(json.dumps(data))


def other_steps(folder):
    """Texts are normalised first; ASCII stays what it is."""
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | {"normalizer": {"type": "StripAccents"}}))


def other_end(folder):
    """Another special token ends a text."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "<|end_of_text|>"}))


def other_template(folder):
    """A line is added to the chat template."""
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + "{# edited #}")


def other_tokenizer(folder):
    """The files of another tokenizer."""
    tiny_tokenizer("gpt2").save_pretrained(folder)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap_two_ids, r"tokenizer\.json: the token ids of a text changed since the folder was saved"),
        (swap_two_rare_merges, r"tokenizer\.json: its vocabulary, merges or the steps around them changed"),
        (other_steps, r"tokenizer\.json: (its vocabulary|the token ids)"),
        (forget_a_merge, r"tokenizer\.json: the token ids of a text"),
        (other_end, r"tokenizer_config\.json: its special and added tokens"),
        (other_template, r"chat_template\.jinja: its chat template"),
        (other_tokenizer, "the folder's tokenizer files were edited, .* restore them"),
    ],
)
def test_tokenizer_files_that_were_changed_are_told(saved, change, message):
    change(saved[1])
    with pytest.raises(InputError, match=message):
        load_policy(saved[1])


@pytest.mark.parametrize("value", [5, {}, {"size": 405}])
def test_a_fingerprint_that_is_none(saved, value):
    edit(saved[1], tokenizer=value)
    with pytest.raises(InputError, match=r"policy\.json, field 'tokenizer': must hold size, ids, special, template"):
        load_policy(saved[1])


def test_a_vocabulary_the_base_model_has_no_embeddings_for(saved):
    _, folder = saved
    own = tiny_tokenizer("llama")
    own.add_tokens([f"word{i}" for i in range(40)])
    own.chat_template = own.chat_template.replace("assistant", "assistant word39")
    own.save_pretrained(folder)
    edit(folder, tokenizer="GONE")
    with pytest.raises(InputError, match=r"gives ids up to 439, but the model at '.*' has 400 embeddings"):
        load_policy(folder)


def test_added_tokens_that_no_template_uses_may_lie_beyond_the_embeddings(saved):
    _, folder = saved
    own = tiny_tokenizer("llama")
    own.add_tokens(["<image>"])
    own.save_pretrained(folder)
    edit(folder, tokenizer="GONE")
    assert load_policy(folder).sense(["Hi"])
