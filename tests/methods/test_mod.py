"""`mod`: the adapters of `soups`, mixed token by token; and how the command line asks for weights."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from paretune.cli.app import app
from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods.mod import from_soups
from paretune.policy import load_policy

PROMPTS = ["What is tea?", "Explain at length how bees came to be.", "Hi"]


def texts(answers):
    return [each.text for each in answers]


def answers(folder, *options):
    arguments = ["generate", str(folder), "--prompt", "What is tea?", "--max-new-tokens", "6", *options, "--json"]
    done = CliRunner().invoke(app, arguments, prog_name="paretune")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["answers"], done.stderr


@pytest.mark.parametrize("fixture", ["tiny_llama", "tiny_qwen", "tiny_gpt2"])
def test_its_adapters_are_those_of_soups_and_one_of_them_alone_answers_alike(request, quick, fixture):
    model = request.getfixturevalue(fixture)
    mod = quick("mod", "lr=1e-2", method="mod", model=model)
    soups = quick("soups", "lr=1e-2", method="soups", model=model)
    for path in (mod / "adapters").rglob("*.safetensors"):
        assert path.read_bytes() == (soups / path.relative_to(mod)).read_bytes()
    one, other = load_policy(mod), load_policy(soups)
    assert one.weight_map.rule == "mix" and one.models_at_inference == 2
    for name in one.names:
        asked = {"weights": {name: 1.0}, "max_new_tokens": 6}
        assert texts(one.generate(PROMPTS, **asked)) == texts(other.generate(PROMPTS, **asked))


def test_made_of_soups_it_is_what_training_gives(quick, tmp_path):
    mod, soups = quick("mod", "lr=1e-2", method="mod"), quick("soups", "lr=1e-2", method="soups")
    made = from_soups(soups, tmp_path / "made")
    for path in mod.rglob("*"):
        if path.is_file() and path.name not in ("metrics.json", "train.jsonl", "README.md"):  # which tell the time
            assert path.read_bytes() == (tmp_path / "made" / path.relative_to(mod)).read_bytes(), path.name
    assert read_json(tmp_path / "made" / "metrics.json") == read_json(soups / "metrics.json")
    assert (tmp_path / "made" / "train.jsonl").read_bytes() == (soups / "train.jsonl").read_bytes()
    assert made.models_at_inference == 2
    assert made.generate(PROMPTS, max_new_tokens=4) == load_policy(mod).generate(PROMPTS, max_new_tokens=4)
    with pytest.raises(InputError, match="was trained by 'mod', not by 'soups'"):
        from_soups(mod, tmp_path / "again")
    with pytest.raises(InputError, match="--overwrite"):
        from_soups(soups, mod)


def test_weights_on_the_command_line(quick):
    folder = quick("mod", "lr=1e-2", method="mod")
    (found,), said = answers(folder, "--weights", "brevity=.7,cheer=.3")
    (wanted,) = load_policy(folder).generate(PROMPTS[:1], weights={"brevity": 0.7, "cheer": 0.3}, max_new_tokens=6)
    assert found["text"] == wanted.text and found["weights"] == {"brevity": 0.7, "cheer": 0.3} and said == ""
    (natural,), _ = answers(folder)
    assert natural["weights"] == {"brevity": 0.5, "cheer": 0.5}


def test_the_command_line_says_which_vector_answered(quick):
    folder = quick("modpo", method="modpo")
    (found,), said = answers(folder, "--weights", "brevity=.7,cheer=.3")
    assert found["weights"] == {"brevity": 0.5, "cheer": 0.5}
    assert said == "note: answered by the adapter for brevity=0.5, cheer=0.5: of those trained the nearest\n"
    assert answers(folder, "--weights", "brevity=1")[1] == answers(folder)[1] == ""
    assert [each["name"] for each in read_json(folder / "policy.json")["parts"]] == ["vector1", "vector2", "vector3"]


def test_policies_of_one_adapter_say_nothing_of_weights(quick):
    (found,), said = answers(quick("dpo", method="dpo"))
    assert "weights" not in found and said == ""
