"""Online rounds from end to end on a tiny model: what kept and dropped rounds leave, how a broken run goes on."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import paretune
from improve_rewards import BROKEN, CALLS
from improving import QUICK, add_scores, make_policy, write_data
from paretune.data import prompt_key, read_rows, split_rows
from paretune.errors import InputError
from paretune.evaluation.testset import load_test_set
from paretune.methods.improve import improve, rounds
from paretune.methods.improve.answers import fitting
from paretune.methods.improve.options import ImproveOptions
from paretune.methods.improve.source import load_source
from paretune.policy import load_policy
from paretune.policy.sample import Journal as Answers
from paretune.training import loop

CALL: dict[str, Any] = QUICK | {"batch_size": 8, "settings": ("epochs=1", "batch_size=5"), "originals": 0.4}


def always(gain: Any) -> dict[str, Any]:
    """Rounds are kept whatever the hypervolume says, so that one follows on the other."""
    return {"kept": True, "why": "told so"}


class World:
    """A policy, its data, and two kept rounds that nothing interrupted."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.data = write_data(folder / "data.jsonl")
        self.policy = make_policy(self.data, model, folder / "policy")
        self.whole = folder / "whole"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> World:
    made = World(tmp_path_factory.mktemp("improve"), tiny_llama)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "_decided", always)
        improve(made.policy, made.data, made.whole, **CALL)
    return made


def described(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "policy.json").read_text())
    return found


def test_two_rounds_leave_a_policy_and_their_account(world):
    account = json.loads((world.whole / "rounds.json").read_text())
    assert [each["round"] for each in account["rounds"]] == [1, 2] and account["kept"] == 2
    assert account["stopped"] == "all rounds are done" and "2 of the 2 rounds were kept" in account["sentence"]
    for each in account["rounds"]:
        assert (each["prompts"], each["sampled"]) == (6, 24)
        assert each["usable"] + sum(each["dropped"].values()) == 24
        assert each["training"]["steps"] > 0
        assert set(each["distance"]) == {"all", "sensed", "raised", "frontier"}
        assert each["hypervolume"]["reference"] == {"brevity": 0.0, "vowels": 0.0}
    first, second = (each["hypervolume"] for each in account["rounds"])
    assert (
        first["after"]["value"]
        == second["before"]["value"]
        == pytest.approx(account["rounds"][1]["hypervolume"]["before"]["value"])
    )
    assert account["start"]["hypervolume"]["value"] == account["hypervolume_before"] == first["before"]["value"]
    assert account["hypervolume_after"] == second["after"]["value"]
    assert account["sentence"] in (world.whole / "README.md").read_text()
    assert not [each.name for each in world.folder.iterdir() if each.name.startswith(".")]
    assert load_policy(world.whole).generate(["What is tea?"], max_new_tokens=4)[0].sensed  # it loads, and senses


def test_the_new_policy_is_of_the_old_ones_data(world):
    before, after = described(world.policy), described(world.whole)
    told = after["data"].pop("rounds")
    assert after["data"] == before["data"]
    assert [(each["round"], each["kept"], each["sampled"]) for each in told] == [(1, True, 24), (2, True, 24)]
    for key in ("objectives", "renderer", "weights", "method", "base_fingerprint"):
        assert after[key] == before[key]
    assert set(after["train_prompts"]) == set(before["train_prompts"])
    policy = load_policy(world.whole)
    found = load_test_set(policy, world.data, read_rows(world.data), split="validation")
    assert found.about["source"] == "the held-out validation part of the file the policy was trained on"


def test_only_training_prompts_are_sampled(world):
    stored = described(world.policy)["data"]["split"]
    train = {prompt_key(row.prompt) for row in split_rows(read_rows(world.data), **stored).train}
    for number in (1, 2):
        samples = read_rows(world.whole / "rounds" / f"round-{number}.jsonl.gz")
        assert {prompt_key(row.prompt) for row in samples} < train
        for row in samples:
            kinds = [each.extra["sampled"]["kind"] for each in row.completions]
            assert kinds == ["sensed", "raised", "frontier", "raised"]
            assert all(set(each.scores) == {"brevity", "vowels"} for each in row.completions)


def once(patch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, at: int = 1) -> None:
    """The function `name` of `owner` raises in its call number `at`."""
    before, calls = getattr(owner, name), [0]

    def wrapped(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        if calls[0] == at:
            raise error
        return before(*arguments, **options)

    patch.setattr(owner, name, wrapped)


FULL = OSError(28, "No space left on device")
STOPS = [
    (Answers, "append", KeyboardInterrupt(), 2, KeyboardInterrupt, None),  # between two batches of answers
    (rounds, "write_rows", FULL, 1, InputError, r"the disk is full .*, and the same command goes on from there"),
    (loop, "_accumulate", KeyboardInterrupt(), 2, KeyboardInterrupt, None),  # in the middle of training
    (rounds, "compare", KeyboardInterrupt(), 1, KeyboardInterrupt, None),  # before the round is decided
    (rounds, "compare", KeyboardInterrupt(), 2, KeyboardInterrupt, None),  # and the second one
]


def test_a_broken_run_goes_on_and_ends_in_the_same_bytes(world, tmp_path, monkeypatch):
    out, said = world.folder / "broken", []
    work = world.folder / ".broken.improve"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rounds, "_decided", always)
    for owner, name, error, at, kind, words in STOPS:
        with monkeypatch.context() as patch:
            once(patch, owner, name, error, at)
            with pytest.raises(kind, match=words):
                improve(world.policy, world.data, out, note=said.append, **CALL)
        assert not out.exists() and work.is_dir()
        if not (work / "start" / "validated.jsonl").exists():
            Path(BROKEN).touch()
            with pytest.raises(InputError, match=r"objective 'vowels'.*out of order.*the same command goes on"):
                improve(world.policy, world.data, out, **CALL)
            Path(BROKEN).unlink()
    with pytest.raises(InputError, match=r"options.delta was 0.2 and is 0.3. Pass --restart"):
        improve(world.policy, world.data, out, **CALL, delta=0.3)
    improve(world.policy, world.data, out, note=said.append, **CALL)
    assert any("continuing from step 1 of" in each for each in said)  # the training, from its checkpoint
    assert sum("kept in .broken.improve" in each for each in said) == 4  # of Ctrl-C; the full disk's error says it
    for file in ("adapter/adapter_model.safetensors", "head.safetensors", "policy.json"):
        assert (out / file).read_bytes() == (world.whole / file).read_bytes(), file
    for each in (world.whole / "rounds").iterdir():
        assert (out / "rounds" / each.name).read_bytes() == each.read_bytes()
    assert untimed(out) == untimed(world.whole)
    assert not list(world.folder.glob(".broken*"))
    shutil.rmtree(out)


def untimed(folder: Path) -> dict[str, Any]:
    """rounds.json without what a clock says."""
    account: dict[str, Any] = json.loads((folder / "rounds.json").read_text())
    for each in account["rounds"]:
        each["training"].pop("seconds")
    return account


def drifting(way: str, model: Path, folder: Path) -> tuple[Path, Any]:
    """A policy by a reward that gives ever more or ever less, whatever the answers are, and what improving it gave."""
    CALLS[way] = 0
    data = write_data(folder / f"{way}.jsonl", {"drift": f"python:improve_rewards:{way}"})
    policy = make_policy(data, model, folder / way, "sga", "scale=fixed")
    return policy, improve(
        policy, data, folder / f"{way}-new", **QUICK | {"validation_prompts": 1, "keep": "ric"}, rounds=2
    )


def test_a_round_is_dropped_when_the_hypervolume_falls(tiny_llama, tmp_path):
    policy, found = drifting("falling", tiny_llama, tmp_path)
    new = Path(found.folder)
    assert found.kept == 0 and found.stopped == "1 round without a gain" and len(found.rounds) == 1
    gain = found.rounds[0]["hypervolume"]
    assert gain["difference"]["value"] < -0.05 and gain["difference"]["low"] is None  # one prompt has no interval
    assert found.hypervolume_after == found.hypervolume_before == pytest.approx(gain["before"]["value"])
    assert "so this is the policy" in found.sentence and "as it was" in found.sentence
    for name in ("adapter/adapter_model.safetensors", "head.safetensors", "train.jsonl"):
        assert (new / name).read_bytes() == (policy / name).read_bytes()
    before, after = described(policy), described(new)
    assert [each["kept"] for each in after["data"].pop("rounds")] == [False]
    for each in (before, after):
        each.pop("digest")
    assert before == after
    load_policy(new)  # the seal is whole


def test_a_round_is_kept_when_the_hypervolume_rises(tiny_llama, tmp_path):
    policy, found = drifting("rising", tiny_llama, tmp_path)
    assert found.kept == 2 and found.stopped == "all rounds are done"
    assert found.hypervolume_after > found.hypervolume_before
    assert (Path(found.folder) / "head.safetensors").read_bytes() != (policy / "head.safetensors").read_bytes()
    again = improve(found.folder, tmp_path / "rising.jsonl", tmp_path / "more", **QUICK, rounds=1)
    told = described(Path(again.folder))["data"]["rounds"]
    assert [each["round"] for each in told] == [1, 2, 1]  # the earlier rounds stay in the account


def test_scores_that_cannot_be_had_are_masked_and_counted(tiny_llama, tmp_path):
    """An objective whose scores came with the data takes no part; one that never scores an answer keeps no sample."""
    data = write_data(tmp_path / "data.jsonl", {"shy": "python:improve_rewards:shy"})
    add_scores(data, "stored")
    policy = make_policy(data, tiny_llama, tmp_path / "policy")
    options = QUICK | {"prompts_per_round": 1, "validation_prompts": 1, "keep": "ric"}
    found = improve(policy, data, tmp_path / "new", **options, rounds=1)
    record = found.rounds[0]
    assert found.masked == {"stored": "it has no reward: its scores came with the data"}
    assert (record["prompts"], record["sampled"], record["usable"]) == (1, 4, 0)
    assert record["unscored"] == {"shy": 4} and record["training"] is None
    assert (record["kept"], record["why"]) == (False, "no sample was kept")
    assert found.hypervolume_before is None and found.kept == 0


def test_a_policy_of_masked_objectives_trains_on(tiny_llama, tmp_path):
    data = write_data(tmp_path / "data.jsonl")
    add_scores(data, "stored")
    policy = make_policy(data, tiny_llama, tmp_path / "policy")
    with pytest.raises(InputError, match="originals must be above 0: 'stored' is scored in the data's own rows alone"):
        improve(policy, data, tmp_path / "new", **QUICK, originals=0.0)
    found = improve(policy, data, tmp_path / "new", **QUICK, rounds=1)
    assert found.rounds[0]["training"]["steps"] > 0
    assert set(found.rounds[0]["hypervolume"]["reference"]) == {"brevity", "vowels"}


@pytest.mark.parametrize("method", ["ric", "cpo", "steer", "pro"])
def test_rounds_are_of_every_method_that_takes_a_profile(world, tiny_llama, tmp_path, method):
    """The rule of `ric` with `ric`: this is its online stage."""
    policy = make_policy(world.data, tiny_llama, tmp_path / "policy", method)
    keep = "ric" if method == "ric" else "pareto"
    found = improve(policy, world.data, tmp_path / "new", **QUICK, keep=keep, rounds=1)
    record = found.rounds[0]
    assert record["rule"] == keep and record["training"]["steps"] > 0
    kinds = {each.extra["sampled"]["kind"] for row in samples_of(found, 1) for each in row.completions}
    assert kinds == ({"sensed", "raised", "frontier"} if method == "pro" else {"frontier", "data"})
    assert (record["distance"] is None) == (method == "pro")  # which is asked for weights, not values
    assert load_policy(found.folder).method == method


def samples_of(found: Any, number: int) -> list[Any]:
    """The scored samples of a round."""
    return read_rows(Path(found.folder) / "rounds" / f"round-{number}.jsonl.gz")


@pytest.mark.parametrize(
    ("method", "said"),
    [("dpo", "takes no profile"), ("sft", "takes no profile"), ("soups", "cannot go on, so it has no")],
)
def test_a_policy_that_has_no_rounds_is_refused(world, tiny_llama, tmp_path, method, said):
    policy = make_policy(world.data, tiny_llama, tmp_path / method, method)
    with pytest.raises(InputError, match=f"by '{method}' {said}"):
        improve(policy, world.data, tmp_path / "no")
    assert not list(tmp_path.glob(".no*"))


@pytest.mark.parametrize(
    ("setting", "said"),
    [("epoch=1", "unknown setting 'epoch'. Did you mean 'epochs'"), ("lora_r=9", "lora_r=4, which cannot change")],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_sampled(world, tmp_path, setting, said):
    with pytest.raises(InputError, match=said):
        improve(world.policy, world.data, tmp_path / "no", **CALL | {"settings": (setting,)})
    assert not list(tmp_path.iterdir())


def test_an_output_that_another_run_has_just_written_stops_it_at_once(world, tmp_path, monkeypatch):
    def late(*arguments: Any, **options: Any) -> Any:
        found = load_source(*arguments, **options)
        shutil.copytree(world.whole, tmp_path / "new")
        return found

    monkeypatch.setattr(sys.modules["paretune.methods.improve.verb"], "load_source", late)
    with pytest.raises(InputError, match="exists already"):
        improve(world.policy, world.data, tmp_path / "new", **CALL)
    assert not (tmp_path / ".new.improve").exists()


def test_other_data_is_refused(world, tmp_path):
    other = tmp_path / "data.jsonl"
    other.write_text(world.data.read_text() + json.dumps({"prompt": "One more?"}) + "\n")
    with pytest.raises(InputError, match="is not what the policy was trained on; rounds need that"):
        load_source(world.policy, other, ImproveOptions())
    other.write_bytes(world.data.read_bytes())
    assert load_source(world.policy, other, ImproveOptions()).prompts  # a copy will do


def test_a_policy_whose_rewards_are_gone_is_refused(world, tiny_llama, tmp_path, monkeypatch):
    module = tmp_path / "short_lived.py"
    module.write_text("def size(completions, **_):\n    return [len(text) for text in completions]\n")
    monkeypatch.syspath_prepend(tmp_path)
    data = write_data(tmp_path / "data.jsonl", {"size": "python:short_lived:size"})
    policy = make_policy(data, tiny_llama, tmp_path / "policy")
    monkeypatch.undo()
    monkeypatch.delitem(__import__("sys").modules, "short_lived")
    module.unlink()
    with pytest.raises(InputError, match="objective 'size': its reward is gone"):
        improve(policy, data, tmp_path / "new")
    assert not list(tmp_path.glob(".new*"))


def test_without_a_validation_part_nothing_can_be_decided(tiny_llama, tmp_path):
    data = write_data(tmp_path / "data.jsonl")
    policy = make_policy(data, tiny_llama, tmp_path / "policy", "sga", "validation=0")
    with pytest.raises(InputError, match="has no validation part"):
        improve(policy, data, tmp_path / "new")


def test_prompts_that_do_not_fit_are_counted(world):
    everything = load_source(world.policy, world.data, ImproveOptions())
    policy = load_policy(world.policy)
    longest = max(everything.prompts, key=lambda row: len(policy.renderer.prefix(row.prompt)))
    room = next(k for k in range(512) if not fitting(policy, [longest], k))
    found = load_source(world.policy, world.data, ImproveOptions(max_new_tokens=room))
    assert found.dropped["prompts_too_long"] == len(everything.prompts) - len(found.prompts) > 0
    with pytest.raises(InputError, match="no training prompt and answer of 500 tokens fit the model"):
        load_source(world.policy, world.data, ImproveOptions(max_new_tokens=500))


def test_an_answer_is_drawn_by_the_seed_of_its_prompt(world):
    policy = load_policy(world.policy)
    prompts, options = ["What is tea?", "What is rain?"], {"temperature": 1.0, "max_new_tokens": 8}
    one = [each.text for each in policy.generate(prompts, seed=[5, 6], **options)]
    two = [each.text for each in policy.generate(prompts[::-1], seed=[6, 5], **options)]
    assert one == two[::-1] != [each.text for each in policy.generate(prompts, seed=[7, 8], **options)]
    with pytest.raises(InputError, match="1 seeds were given for 2 prompts"):
        policy.generate(prompts, seed=[5], **options)


def test_the_verb_is_a_function_of_the_package():
    assert paretune.improve is improve
