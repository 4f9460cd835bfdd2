"""`grpo` trains by TRL and is one of ours in all else: ids, draws, log, folder; what it cannot do, it refuses."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from cli.conftest import snapshot
from measured_rows import write_measured
from paretune.cli.app import app
from paretune.data.rows import prompt_key
from paretune.errors import InputError
from paretune.files import read_json
from paretune.methods import train
from paretune.methods.grpo import rollout
from paretune.methods.grpo import trainer as made
from paretune.methods.grpo.config import GrpoConfig
from paretune.policy import load_policy
from paretune.policy.engine import decode
from paretune.training import DivergedError, resolve

QUICK = ("dtype=float32", "batch_size=4", "num_generations=4", "max_completion_length=8", "lora_r=4", "lr=1e-3")


@pytest.fixture
def grpo(tmp_path: Path, tiny_llama: Path) -> Callable[..., Path]:
    """Trains a policy in a blink and returns its folder."""

    def run(*settings: str, name: str = "p", of: tuple[str, ...] = ("letters", "short"), **options: Any) -> Path:
        data = options.pop("data", None) or write_measured(tmp_path / f"{'-'.join(of)}.jsonl", *of)
        model = options.pop("model", tiny_llama)
        train("grpo", data, str(model), tmp_path / name, settings=[*QUICK, *settings], **options)
        return tmp_path / name

    return run


def journal(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    return [{key: value for key, value in each.items() if key != "tokens_per_second"} for each in lines]


def adapter(folder: Path) -> str:
    return hashlib.sha256((folder / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What TRL made of every step's groups: ids, masks and advantages."""
    seen: list[dict[str, Any]] = []
    scored = made.Trainer._generate_and_score_completions

    def spy(self: Any, inputs: Any) -> Any:
        out = scored(self, inputs)
        told = {"scores": [each["scores"] for each in inputs], "eos": list(self.eos_token_ids)}
        seen.append(told | {key: value.clone() for key, value in out.items() if isinstance(value, torch.Tensor)})
        return out

    monkeypatch.setattr(made.Trainer, "_generate_and_score_completions", spy)
    return seen


# --- a policy like any other ----------------------------------------------------------------------------------------


def test_it_trains_saves_loads_and_answers(tiny_model, grpo):
    folder = grpo(model=tiny_model)
    records, policy = journal(folder), load_policy(folder)
    assert [each["step"] for each in records] == [1, 2]  # 7 prompts are trained on, 4 a step
    for each in records:
        assert {
            "loss",
            "reward",
            "reward_letters",
            "reward_short",
            "kl",
            "completion_length",
            "grad_norm",
        } <= each.keys()
        assert all(math.isfinite(value) for value in each.values()) and 0 <= each["reward"] <= 1
        assert each["reward"] == pytest.approx((each["reward_letters"] + each["reward_short"]) / 2, abs=1e-6)
    assert policy.method == "grpo" and not policy.has_head and not policy.takes_weights and not policy.takes_profile
    moved = [each for name, each in policy.peft.named_parameters() if "lora_B" in name]
    assert moved and all(float(each.abs().max()) > 0 for each in moved)
    assert list(policy.peft.peft_config) == ["default"]
    metrics = read_json(folder / "metrics.json")
    assert metrics["steps"] == 2 and metrics["tokens"] == records[-1]["tokens"] and metrics["seconds"] > 0
    assert policy.generate(["What is tea?"], max_new_tokens=4)[0].tokens <= 4


@pytest.mark.parametrize("of", [("vowels",), ("letters", "short", "vowels")])
def test_any_number_of_objectives(grpo, of):
    folder = grpo(of=of)
    assert load_policy(folder).names == list(of)
    assert {f"reward_{name}" for name in of} <= journal(folder)[-1].keys()


def test_what_is_rewarded_becomes_more(grpo):
    settings = ("epochs=10", "lr=2e-2", "beta=0", "num_generations=8", "max_completion_length=4", "lora_dropout=0")
    rewards = [each["reward"] for each in journal(grpo(*settings, of=("letters",)))]
    assert sum(rewards[-4:]) / 4 > sum(rewards[:4]) / 4 + 0.15, rewards


def test_the_same_seed_gives_the_same_bytes(grpo, plain):
    again = grpo()
    assert adapter(again) == adapter(plain) and journal(again) == journal(plain)
    # a seed whose last 32 bits are those of seed 0: TRL sees no more of it, but no draw of ours is TRL's
    assert adapter(grpo(f"seed={2**40}", "lora_dropout=0", name="other")) != adapter(
        grpo("lora_dropout=0", name="undropped")
    )


def test_prompts_of_the_training_part_alone_are_trained_on(grpo, monkeypatch):
    asked, sample = [], rollout.Rollouts.sample
    monkeypatch.setattr(
        rollout.Rollouts,
        "sample",
        lambda self, turns: (
            asked.extend((turn.epoch, prompt_key(turn.example.row.prompt)) for turn in turns) or sample(self, turns)
        ),
    )
    folder = grpo("epochs=2", "batch_size=4")
    policy, metrics = load_policy(folder), read_json(folder / "metrics.json")
    trained = policy.metadata["train_prompts"]
    assert {key for _, key in asked} == set(trained) and len(trained) == metrics["train_prompts"] == 7
    # two epochs of seven, each in its own order; the third's first two prompts fill the last step up
    assert len(asked) == len(set(asked)) == 16 and metrics["steps"] == 4
    epochs = [[key for epoch, key in asked if epoch == each] for each in (0, 1, 2)]
    assert list(map(len, epochs)) == [7, 7, 2] and epochs[0] != epochs[1]


# --- the ids, and the ends of answers -------------------------------------------------------------------------------


def test_prompts_are_those_that_generate_feeds(tiny_model, grpo, groups, monkeypatch):
    policy = load_policy(grpo("batch_size=8", model=tiny_model))
    fed: list[list[int]] = []
    import paretune.policy.policy as place

    prefill, decoding = place.prefill, place.decode
    monkeypatch.setattr(place, "prefill", lambda c, rows, *a, **k: fed.extend(rows) or prefill(c, rows, *a, **k))

    def spy(causal: Any, state: Any, suffixes: Any, **options: Any) -> Any:
        for row, suffix in zip(fed, suffixes, strict=True):
            row.extend(suffix)
        return decoding(causal, state, suffixes, **options)

    monkeypatch.setattr(place, "decode", spy)
    rows = [json.loads(line) for line in Path(policy.metadata["data"]["path"]).read_text().splitlines()]
    policy.generate([row["prompt"] for row in rows], condition="none", max_new_tokens=1)
    trained = [
        ids[mask.bool()].tolist() for ids, mask in zip(groups[0]["prompt_ids"], groups[0]["prompt_mask"], strict=True)
    ]
    assert len(trained) == 32 and len(fed) == 10
    assert all(ids in fed for ids in trained)
    assert trained[0] == trained[3] != trained[4]  # a group is four answers to one prompt


def test_answers_are_the_policys_own_and_end_where_its_answers_end(tiny_model, grpo, groups, monkeypatch):
    greedy: list[Any] = []
    monkeypatch.setattr(rollout, "decode", lambda *a, **k: greedy.append(decode(*a, **k)) or greedy[-1])
    rows = []
    score = rollout.Rollouts.score
    monkeypatch.setattr(
        rollout.Rollouts,
        "score",
        lambda self, turns, answers: (
            rows.append(([t.example.row for t in turns], [self.text(a) for a in answers]))
            or score(self, turns, answers)
        ),
    )
    folder = grpo(
        "temperature=1e-4", "max_completion_length=24", "epochs=1", "batch_size=8", "lr=1e-12", model=tiny_model
    )
    policy = load_policy(folder)  # all but untrained
    prompts, texts = rows[0]
    expected = policy.generate([each.prompt for each in prompts], condition="none", max_new_tokens=24)
    assert texts[::4] == [each.text for each in expected]
    stop = policy.renderer.stop_ids(policy.causal.generation_config.eos_token_id)
    assert stop <= set(groups[0]["eos"])
    for answer, ids, mask in zip(greedy[0], groups[0]["completion_ids"], groups[0]["completion_mask"], strict=True):
        assert answer.ids == ids[mask.bool()].tolist()
        assert (answer.ids[-1] in stop) == answer.finished and not stop & set(answer.ids[:-1])


def test_a_finished_answer_teaches_its_end_and_is_scored_without_it(grpo, groups, monkeypatch):
    """Every second token of the tiny model's vocabulary ends an answer here, so that many are finished."""
    monkeypatch.setattr(rollout.Rollouts, "stop_ids", property(lambda self: set(range(5, 400, 2))))
    texts: list[str] = []
    text = rollout.Rollouts.text
    monkeypatch.setattr(rollout.Rollouts, "text", lambda self, answer: texts.append(text(self, answer)) or texts[-1])
    policy = load_policy(grpo())
    ended = 0
    for ids, mask, said in zip(groups[0]["completion_ids"], groups[0]["completion_mask"], texts[:16], strict=True):
        kept = ids[mask.bool()].tolist()
        if kept[-1] % 2:
            ended += 1
            assert policy.tokenizer.decode(kept[:-1], skip_special_tokens=True) == said
    assert ended > 4


# --- rewards --------------------------------------------------------------------------------------------------------


def standardised(values: list[float]) -> list[float]:
    """By the sample standard deviation, as TRL does."""
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((each - mean) ** 2 for each in values) / (len(values) - 1))
    return [(each - mean) / (std + 1e-4) for each in values]


@pytest.mark.parametrize("aggregation", ["normalize_then_sum", "sum_then_normalize"])
def test_advantages_are_those_worked_out_by_hand(grpo, groups, aggregation):
    grpo(f"aggregation={aggregation}", "weights={letters: 3, short: 1}")
    for seen in groups:
        scores, groups_of = seen["scores"], range(0, 16, 4)
        if aggregation == "sum_then_normalize":
            sums = [0.75 * each["letters"] + 0.25 * each["short"] for each in scores]
            expected = [value for at in groups_of for value in standardised(sums[at : at + 4])]
        else:
            apart = {
                name: [v for at in groups_of for v in standardised([each[name] for each in scores[at : at + 4]])]
                for name in ("letters", "short")
            }
            expected = standardised(
                [0.75 * a + 0.25 * b for a, b in zip(apart["letters"], apart["short"], strict=True)]
            )
        assert seen["advantages"].tolist() == pytest.approx(expected, abs=1e-3)
        assert max(map(abs, expected)) > 0.5


@pytest.mark.parametrize("aggregation", ["normalize_then_sum", "sum_then_normalize"])
def test_all_weight_on_one_objective_is_that_objective_alone(grpo, aggregation):
    both = grpo(f"aggregation={aggregation}", "weights={short: 2}", name="both")
    alone = grpo(f"aggregation={aggregation}", name="alone", objectives=["short"])
    even = grpo(f"aggregation={aggregation}", name="even")
    assert adapter(both) == adapter(alone) != adapter(even)


@pytest.mark.parametrize("aggregation", ["normalize_then_sum", "sum_then_normalize"])
def test_what_cannot_be_scored_is_masked_and_counted(grpo, groups, aggregation):
    folder = grpo(f"aggregation={aggregation}", of=("picky",))
    lacking = 0
    for seen in groups:
        for score, advantage in zip(seen["scores"], seen["advantages"].tolist(), strict=True):
            lacking += score["picky"] is None
            assert math.isfinite(advantage)  # one missing score makes no other answer's advantage NaN
            if score["picky"] is None:
                assert advantage == 0
        assert any(seen["advantages"].tolist())
    assert lacking > 4 and read_json(folder / "metrics.json")["unscored_picky"] == lacking
    assert sum(each.get("unscored_picky", 0) for each in journal(folder)) == lacking


def test_a_missing_score_moves_its_answer_neither_up_nor_down():
    """TRL counts it 0 where rewards are summed first: the worst there is."""
    scores = [{"a": 0.5, "b": 0.9}, {"a": 0.7, "b": None}, {"a": None, "b": None}, {"a": 0.3, "b": 0.5}]
    filled = rollout.with_group_means([*scores, {"a": 0.1, "b": None}], 4)
    assert filled[0] == scores[0] and filled[3] == scores[3]
    assert filled[1] == {"a": 0.7, "b": pytest.approx(0.7)}
    assert filled[2] == {"a": None, "b": None}  # TRL leaves it out
    assert filled[4] == {"a": 0.1, "b": None}  # another group, of which nobody is scored for b


def test_scores_are_normalised_by_the_policys_scales(grpo, groups):
    policy = load_policy(grpo())
    values = [value for seen in groups for each in seen["scores"] for value in each.values()]
    assert all(0 <= value <= 1 for value in values)
    first = groups[0]
    ids = first["completion_ids"][0][first["completion_mask"][0].bool()].tolist()
    text = policy.tokenizer.decode(ids, skip_special_tokens=True)
    short = next(each for each in policy.objectives if each.name == "short")
    assert first["scores"][0]["short"] == pytest.approx(short.normalise(-float(len(text))))


# --- settings -------------------------------------------------------------------------------------------------------


OPTIONS = ("num_generations=2", "max_completion_length=5", "temperature=0.5", "aggregation=sum_then_normalize")
OPTIONS += ("weights={short: 1}", "beta=5", "lr=1e-2", "batch_size=2", "epochs=2", "schedule=constant")
OPTIONS += ("warmup_steps=2", "betas=[0.5, 0.6]", "weight_decay=0.5", "clip=1e-3", "lora_dropout=0.5", "scale=sigmoid")


@pytest.mark.parametrize("setting", OPTIONS)
def test_every_setting_changes_the_policy(grpo, plain, setting):
    assert adapter(grpo(setting)) != adapter(plain)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    """A policy of the quick settings alone."""
    folder = tmp_path_factory.mktemp("plain")
    train("grpo", write_measured(folder / "d.jsonl", "letters", "short"), str(tiny_llama), folder / "p", settings=QUICK)
    return folder / "p"


@pytest.mark.parametrize("setting", ["micro_tokens=64", "gradient_checkpointing=true"])
def test_what_saves_memory_changes_no_number(grpo, setting):
    exact = ("lora_dropout=0", "dtype=float64")
    one, two = journal(grpo(*exact, name="one")), journal(grpo(*exact, setting, name="two"))
    for a, b in zip(one, two, strict=True):
        # the KL is a mean of the passes' means, a figure of the log alone
        assert a == pytest.approx(b | {"kl": a["kl"], "entropy": a["entropy"]}, rel=1e-4, abs=1e-7)


def test_an_adapter_in_low_precision_is_trained_in_float32_and_saved_in_its_own(grpo, monkeypatch):
    """Steps of this size are lost where weights of bfloat16 are added to."""
    kinds: list[set[torch.dtype]] = []
    make = made.make_trainer

    def spy(setup: Any, peft: Any, *others: Any) -> Any:
        kinds.append({each.dtype for each in peft.parameters() if each.requires_grad})
        return make(setup, peft, *others)

    monkeypatch.setattr(made, "make_trainer", spy)
    folder = grpo("dtype=bfloat16")
    assert kinds == [{torch.float32}]
    saved = load_file(str(folder / "adapter" / "adapter_model.safetensors"))
    assert {each.dtype for each in saved.values()} == {torch.bfloat16}
    assert all(each.abs().max() > 0 for name, each in saved.items() if "lora_B" in name)


def test_rows_at_once_fit_the_budget_and_the_batch():
    assert made.rows_at_once(64, 100, 2048) == 16  # 20 would fit, 16 divides 64
    assert made.rows_at_once(12, 100, 599) == 4
    assert made.rows_at_once(12, 100, 10) == 1 and made.rows_at_once(12, 1, 10**6) == 12


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("aggregation=sum", "field 'aggregation': 'sum' is not allowed.*normalize_then_sum"),
        ("num_generations=1", "field 'num_generations': must be 2 or more"),
        ("max_completion_length=0", "field 'max_completion_length': must be above 0"),
        ("temperature=0", "field 'temperature': must be above 0"),
        ("beta=-1", "field 'beta': must be 0 or more"),
        ("weights={short: -1}", "field 'weights': the weight of 'short' must be a finite number, at least 0"),
        ("weights={short: 0}", "field 'weights': weights need at least one that is above 0"),
        ("pairs=pareto", "field 'pairs': has no effect here: grpo makes no pairs; what each objective"),
        ("pair_margin=0.1", "field 'pair_margin': has no effect here: grpo makes no pairs"),
        ("max_tokens=100", "field 'max_tokens': has no effect here: nobody knows how long the answers will be"),
        ("save_every=1", "field 'save_every': has no effect here: grpo saves no checkpoints"),
        ("keep=2", "field 'keep': has no effect here: grpo saves no checkpoints"),
        ("weights={short: 1e308, long: 1e308}", "field 'weights': .* a finite sum"),
        ("num_generation=4", "Did you mean 'num_generations'"),
    ],
)
def test_settings_out_of_range(setting, message):
    with pytest.raises(InputError, match=message):
        resolve(GrpoConfig, settings=[setting])


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(grpo: Callable[..., Path], tmp_path: Path) -> Callable[..., None]:
    """A training that is refused with these words, and leaves nothing behind."""

    def check(match: str, *settings: str, error: type[Exception] = InputError, **options: Any) -> None:
        if "data" not in options:
            options["data"] = write_measured(tmp_path / "d.jsonl", "letters", "short")
        before = snapshot(tmp_path)
        with pytest.raises(error, match=match):
            grpo(*settings, **options)
        assert snapshot(tmp_path) == before

    return check


def test_scores_that_only_came_with_the_data_are_refused(refused, scored_rows):
    refused("objective 'brevity' came with the data .column:brevity., and grpo must score answers", data=scored_rows)


def test_rows_without_scores_are_refused(refused, tmp_path):
    rows = [{"prompt": f"Is {at} odd?", "chosen": "Yes.", "rejected": "No."} for at in range(10)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refused("the rows have no scores, on which grpo's rewards are scaled", data=tmp_path / "d.jsonl")


def test_a_weight_of_an_unknown_objective_is_refused(refused):
    refused("field 'weights': there is no objective 'shrt'. Did you mean 'short'", "weights={shrt: 1}")


def test_a_missing_trl_is_told_with_what_to_install(refused, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr("paretune.methods.grpo.method.find_spec", lambda name: None if name == "trl" else there(name))
    refused(r'needs the package trl; run: pip install "paretune\[grpo\]"')


def test_several_gpus_are_refused(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    refused("one GPU; make one visible with CUDA_VISIBLE_DEVICES=0")


def test_a_policy_by_grpo_cannot_go_on(grpo, tmp_path):
    with pytest.raises(InputError, match="a policy by 'grpo' cannot go on"):
        train("grpo", tmp_path / "letters-short.jsonl", None, tmp_path / "q", start=grpo())


def test_prompts_that_leave_no_room_are_dropped_and_counted(grpo, tmp_path):
    data = write_measured(tmp_path / "d.jsonl", "letters", "short")
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    rows[1]["prompt"] = "Why is it so, and how did it come to be as it is, do you know?"
    rows[2]["completions"] = []  # a prompt is all that is needed
    rows[3]["completions"] = rows[3]["completions"][:1] * 2  # a tie
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ("max_length=100", "max_completion_length=50", "validation=0", "test=0")
    metrics = read_json(grpo(*settings, data=data) / "metrics.json")
    assert metrics["dropped"] == {"prompts_too_long": 1} and metrics["train_prompts"] == 9
    with pytest.raises(InputError, match="and an answer of 50 tokens do not fit into 100; lower max_completion_length"):
        grpo(*settings, data=data, strict=True, name="q")


def test_numbers_that_are_not_finite_stop_the_training(refused, monkeypatch):
    loss = made.Trainer._compute_loss
    monkeypatch.setattr(
        made.Trainer, "_compute_loss", lambda self, *a: loss(self, *a) * (math.nan if self._step else 1.0)
    )
    refused("stopped before the step: the gradient is not finite. Rows in the batch: p", error=DivergedError)


def test_a_reward_that_fails_is_told_by_objective_and_row(refused, monkeypatch):
    def broken(completions: list[str], **columns: Any) -> list[float]:
        raise RuntimeError("out of words")

    monkeypatch.setattr("measured_rows.short", broken)
    refused(r"objective 'short', row 'p\d'.* raised RuntimeError on row 'p\d': out of words")


# --- what it leaves behind ------------------------------------------------------------------------------------------


def test_nothing_is_written_but_the_policy(grpo, tmp_path, monkeypatch, capfd):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    during: list[set[str]] = []
    sample = rollout.Rollouts.sample
    monkeypatch.setattr(
        rollout.Rollouts,
        "sample",
        lambda self, turns: during.append({each.name for each in tmp_path.iterdir()}) or sample(self, turns),
    )
    folder = grpo()
    assert all(
        name.startswith(".p.") for name in during[-1] - {"cwd", "letters-short.jsonl", "letters-short.objectives.json"}
    )
    assert not list((tmp_path / "cwd").iterdir())
    assert {each.name for each in tmp_path.iterdir()} == {
        "cwd", "p", "letters-short.jsonl", "letters-short.objectives.json"
    }  # fmt: skip
    kinds = {path.suffix for path in tmp_path.rglob("*") if path.is_file() and path.name != ".paretune"}
    assert kinds <= {".json", ".jsonl", ".safetensors", ".jinja", ".md"}
    assert not any(path.read_bytes()[:4] == b"PK\x03\x04" for path in folder.rglob("*") if path.is_file())
    told = capfd.readouterr()
    assert told.out == "" and "trl" not in told.err.lower()


def test_the_command_line_shows_our_words_alone(tmp_path, tiny_llama):
    data = write_measured(tmp_path / "d.jsonl", "letters", "short")
    settings = [part for each in QUICK for part in ("--set", each)]
    call = ["train", "grpo", "--data", str(data), "--model", str(tiny_llama), "--out", str(tmp_path / "p"), *settings]
    done = CliRunner().invoke(app, [*call, "--set", "weights.letters=2", "--json"])
    assert done.exit_code == 0 and done.stderr == ""
    result = json.loads(done.stdout)
    assert result["method"] == "grpo" and result["steps"] == 2 and 0 <= result["metrics"]["reward_short"] <= 1
    config = read_json(tmp_path / "p" / "policy.json")["config"]
    assert config["weights"] == {"letters": 2.0} and config["aggregation"] == "normalize_then_sum"
    done = CliRunner().invoke(app, [*call, "--overwrite"])
    assert "grpo, 2 steps, 0." in done.stdout and " pairs" not in done.stdout


def test_nobody_is_told_that_it_runs(grpo, monkeypatch):
    def told(*arguments: Any, **options: Any) -> None:
        raise AssertionError("telemetry")

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", told)
    grpo()


def test_the_model_is_given_back_as_it_was(grpo, monkeypatch):
    seen: list[Any] = []
    restore = made.restore
    monkeypatch.setattr(made, "restore", lambda causal: seen.append(causal) or restore(causal))
    before = load_policy(grpo(name="q")).causal.generation_config.eos_token_id
    grpo()
    assert "forward" not in vars(seen[-1]) and seen[-1].generation_config.eos_token_id == before
