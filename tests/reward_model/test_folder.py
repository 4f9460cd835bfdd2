"""Saved = loaded; the same seed gives the same bytes; what does not belong together is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paretune.errors import InputError
from paretune.policy.seal import seal
from paretune.reward_model import load_reward_model, train_reward_model
from paretune.reward_model.folder import save_reward_model
from tiny_models import make_tiny
from tiny_rewards import QUICK

PROMPTS = [[{"role": "user", "content": "What is number 3?"}], [{"role": "user", "content": "Hi"}]]
TEXTS = ["Please yes yes 3.", "Never 9."]


@pytest.fixture
def copy(trained, tmp_path):
    """A copy of the trained folder to be spoilt."""
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def edit(folder, *, sealed=True, **changes):
    """Change reward.json; `sealed` as if it had been saved so."""
    path = folder / "reward.json"
    described = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(described | ({"digest": seal(described)} if sealed else {})))


def test_the_folder_is_whole_and_says_what_it_is(trained):
    names = {str(path.relative_to(trained)) for path in trained.rglob("*") if path.is_file()}
    wanted = {"reward.json", "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "head.safetensors"}
    assert wanted | {"tokenizer.json", "metrics.json", "train.jsonl", "README.md", ".paretune"} <= names
    described = json.loads((trained / "reward.json").read_text())
    assert [(each["name"], each["direction"], each["unit"]) for each in described["objectives"]] == [
        ("kind", "maximise", "rating"), ("polite", "maximise", "logit")
    ]  # fmt: skip
    assert described["config"]["epochs"] == 3 and not {"scale", "pairs"} & set(described["config"])
    assert described["data"]["split"]["validation"] == 0.25 and len(described["data"]["sha256"]) == 64
    metrics = json.loads((trained / "metrics.json").read_text())
    accuracy = metrics["validation"]["polite"]["accuracy"]["value"]
    assert f"| accuracy | - | {accuracy:.3f}" in (trained / "README.md").read_text()
    assert len((trained / "train.jsonl").read_text().splitlines()) == metrics["steps"]
    assert metrics["supervision"]["kind"] == {"pairs": 0, "ratings": 3 * metrics["train_prompts"], "without": 0}
    assert metrics["supervision"]["polite"]["without"] > 0


def test_saved_is_loaded(trained, tmp_path):
    model = load_reward_model(trained)
    save_reward_model(model, tmp_path / "again", metrics={})
    again = load_reward_model(tmp_path / "again")
    assert model.score(PROMPTS, TEXTS) == again.score(PROMPTS, TEXTS)
    for file in ("head.safetensors", "adapter/adapter_model.safetensors"):
        one, two = load_file(trained / file), load_file(tmp_path / "again" / file)
        assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert (tmp_path / "again" / "reward.json").read_text() == (trained / "reward.json").read_text()


def test_the_same_seed_gives_the_same_bytes(quick):
    one, two, other = quick("one"), quick("two"), quick("other", seed=1)
    for file in ("head.safetensors", "adapter/adapter_model.safetensors"):
        first = (one / file).read_bytes()
        assert first == (two / file).read_bytes() and first != (other / file).read_bytes()


def test_loaded_rewards_are_those_of_training(quick, rows_file):
    """Validation, made before saving, is what the loaded model gives."""
    from paretune.bootstrap import Bootstrap
    from paretune.data import read_rows, split_rows
    from paretune.policy.renderer import Renderer
    from paretune.reward_model.config import RewardConfig
    from paretune.reward_model.examples import Dropped, encode
    from paretune.reward_model.supervision import Supervision
    from paretune.reward_model.validate import validate

    folder = quick("reward", "lr=1e-3")
    model = load_reward_model(folder)
    split = split_rows(read_rows(rows_file), validation=0.25, test=0.0)
    supervision = Supervision(model.objectives, RewardConfig(validation=0.25))
    supervision.fit(split.train)
    examples = encode(split.validation, supervision, Renderer(model.tokenizer, []), max_length=512, dropped=Dropped())
    found = validate(model, examples, Bootstrap(50))
    assert found == json.loads((folder / "metrics.json").read_text())["validation"]


def test_ratings_come_back_in_their_own_unit(trained):
    head = load_reward_model(trained).module.head
    assert 1 < head.rating_mean[0] < 3 and head.rating_std[0] > 1
    assert (head.rating_mean[1], head.rating_std[1]) == (0, 1)


def test_no_such_folder_a_policy_or_something_else(tmp_path):
    with pytest.raises(InputError, match="no such folder of a reward model"):
        load_reward_model(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"no reward model \(it has no reward.json\)"):
        load_reward_model(tmp_path)
    (tmp_path / "policy.json").write_text("{}")
    with pytest.raises(InputError, match="is a policy, no reward model"):
        load_reward_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "has format 2"),
        ({"objectives": {}}, "must be a list"),
        ({"objectives": [{"name": "kind"}]}, "wrong type"),
        ({"objectives": []}, "no objective is given"),
        ({"base_model": 3}, "must be a str"),
        ({"head": {"depth": "deep"}}, "head.depth"),
        ({"head": {"deep": 1}}, "unknown setting 'head.deep'"),
        ({"head": {"depth": 1}}, "does not belong to this reward.json"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(copy, changes, message):
    edit(copy, **changes)
    with pytest.raises(InputError, match=message):
        load_reward_model(copy)


def test_an_edited_description_is_refused(copy):
    listed = json.loads((copy / "reward.json").read_text())["objectives"]
    edit(copy, sealed=False, objectives=listed[::-1])
    with pytest.raises(InputError, match="field 'objectives': is not what it was"):
        load_reward_model(copy)


def test_a_head_of_other_objectives_is_refused(copy):
    listed = json.loads((copy / "reward.json").read_text())["objectives"]
    edit(copy, objectives=listed[::-1])
    with pytest.raises(InputError, match=r"measures kind, polite, but reward\.json says polite, kind"):
        load_reward_model(copy)
    edit(copy, objectives=[listed[0] | {"direction": "minimise"}, listed[1]])
    with pytest.raises(InputError, match="other directions, units or levels"):
        load_reward_model(copy)


@pytest.mark.parametrize("what", ["missing", "nan", "tensor", "header", "std"])
def test_a_spoilt_head_is_refused(copy, what):
    path = copy / "head.safetensors"
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as file:
        header = file.metadata()
    tensors = load_file(path)
    if what == "nan":
        tensors["rating_mean"][0] = float("nan")
    elif what == "tensor":
        tensors.pop("rating_mean")
    elif what == "std":
        tensors["rating_std"][0] = 0.0
    path.unlink()
    if what != "missing":
        save_file(tensors, str(path), metadata=None if what == "header" else header)
    messages = {
        "missing": "is missing",
        "nan": "NaN",
        "tensor": "does not belong",
        "header": "header",
        "std": "fitting",
    }
    with pytest.raises(InputError, match=messages.get(what, what)):
        load_reward_model(copy)


def test_another_base_model_is_refused(copy, tmp_path):
    other = make_tiny(tmp_path / "other", "qwen", seed=1)
    with pytest.raises(InputError, match="another base model"):
        load_reward_model(copy, base=str(other))
    with pytest.raises(InputError, match="no such model folder"):
        load_reward_model(copy, base=str(tmp_path / "gone"))


def test_a_changed_tokenizer_and_a_missing_adapter_are_refused(copy):
    (copy / "chat_template.jinja").write_text("{{ messages[-1]['content'] }}")
    with pytest.raises(InputError, match="chat template"):
        load_reward_model(copy)
    shutil.rmtree(copy / "adapter")
    (copy / "chat_template.jinja").unlink()
    with pytest.raises(InputError):
        load_reward_model(copy)


def test_what_was_edited_is_told_of_as_a_reward_models(copy):
    config = copy / "adapter" / "adapter_config.json"
    saved = json.loads(config.read_text())
    config.write_text(json.dumps(saved | {"lora_alpha": saved["lora_alpha"] + 1}))
    with pytest.raises(InputError, match=r"adapter_config\.json: is not what it was when the folder was saved"):
        load_reward_model(copy)
    config.write_text(json.dumps(saved))
    edit(copy, tokenizer={})
    with pytest.raises(InputError, match=r"reward\.json.*field 'tokenizer': must hold size"):
        load_reward_model(copy)
    edit(copy, tokenizer=json.loads((copy / "reward.json").read_text())["tokenizer"], base_model="/no/such/model")
    with pytest.raises(InputError, match=r"say where it is with trained:FOLDER\?base=MODEL"):
        load_reward_model(copy)


def test_saved_files_follow_the_umask(trained):
    mask = os.umask(0)
    os.umask(mask)
    files = [path for path in trained.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}


def test_nothing_is_left_of_a_training_that_fails(rows_file, tiny_qwen, tmp_path):
    with pytest.raises(InputError, match="not finite"):
        train_reward_model(rows_file, str(tiny_qwen), tmp_path / "out", settings=[*QUICK, "lr=1e30", "epochs=3"])
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(InputError, match="not written by paretune"):
        train_reward_model(rows_file, str(tiny_qwen), tmp_path / "mine", overwrite=True)


def test_two_trainings_into_one_folder_are_refused(rows_file, tiny_qwen, tmp_path):
    from paretune.files import locked

    with locked(tmp_path / ".out.lock", "training"), pytest.raises(InputError, match="going on already"):
        train_reward_model(rows_file, str(tiny_qwen), tmp_path / "out", settings=QUICK)
    assert list(tmp_path.iterdir()) == []
