"""The whole way on real, tiny, policies: nothing is expected of their answers, everything of the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from paretune.data import store_objectives
from paretune.errors import InputError
from paretune.evaluation import CONDITIONS, evaluate
from paretune.methods import train
from paretune.policy import load_policy
from paretune.policy.backbone import load_backbone
from paretune.profile import Objective


def count_of_e(completions: Sequence[str], **_: Any) -> list[float | None]:
    """A reward that training does not use."""
    return [float(text.count("e")) for text in completions]


def test_a_trained_policy_is_evaluated_from_its_folder(tiny_llama: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    with data.open("w") as file:
        for k in range(40):
            long, short = "It is a long story. " * 4, "It is."
            completions = [
                {"text": text, "scores": {"brevity": float(-len(text.split())), "stored": float(k % 3 + i)}}
                for i, text in enumerate((short, long))
            ]
            file.write(json.dumps({"prompt": f"What is number {k}?", "completions": completions}) + "\n")
    store_objectives(data, [Objective("brevity", "lexical:brevity"), Objective("stored", "column:stored")])
    train("sga", data, str(tiny_llama), tmp_path / "policy", settings=("epochs=1", "test=0.3"))
    metrics = evaluate([tmp_path / "policy"], data, tmp_path / "out", max_new_tokens=6, bootstrap=50, control_prompts=2)
    own = metrics["policies"]["policy"]
    assert list(own["conditions"]) == list(CONDITIONS)
    assert own["scored"] == ["brevity"] and "stored" in own["unscored"]
    assert own["verdict"]["helps"] in (True, False)
    assert own["test"]["dropped_trained_on"] == 0
    assert {"head", "probe", "constant"} <= set(own["head"]["stored"])
    assert 0 <= own["control_accuracy"]["value"] <= 1
    assert own["conditions"]["sensed"]["tokens"]["value"] <= 6
    assert (tmp_path / "out" / "report.html").stat().st_size > 5000


@pytest.fixture(scope="module")
def trained(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, and policies of three kinds made of them: one that senses, one adapter, an adapter an objective."""
    folder = tmp_path_factory.mktemp("compared")
    with (folder / "rows.jsonl").open("w") as file:
        for k in range(30):
            texts = [f"{'warm ' * ((k * i) % 5)}tea {'cold ' * ((k + i) % 7)}." for i in range(3)]
            completions = [
                {"text": text, "scores": {"brevity": -float(len(text.split())), "ease": float(text.count("warm") + i)}}
                for i, text in enumerate(texts)
            ]
            file.write(json.dumps({"prompt": f"What is number {k}?", "completions": completions}) + "\n")
    objectives = [Objective("brevity", "lexical:brevity"), Objective("ease", "lexical:length")]
    store_objectives(folder / "rows.jsonl", objectives)
    for method in ("sga", "dpo", "soups"):
        train(method, folder / "rows.jsonl", str(tiny_llama), folder / method, settings=("epochs=1", "test=0.3"))
    return folder


def test_policies_of_every_kind_are_compared_with_their_base_model(trained: Path, tiny_llama: Path) -> None:
    card_before = (trained / "dpo" / "README.md").read_text()
    metrics = evaluate(
        [trained / name for name in ("sga", "dpo", "soups")],
        trained / "rows.jsonl",
        trained / "out",
        max_new_tokens=5,
        bootstrap=30,
        control_prompts=2,
        weights="grid",
        profiles="brevity=.9",
        include_base=True,
        judge_with=["brevity=python:evaluation.test_tiny:count_of_e"],
        card=True,
    )
    kinds = {name: [point["kind"] for point in own["sweep"]] for name, own in metrics["policies"].items()}
    assert kinds == {"sga": ["weights"] * 5 + ["profile"], "dpo": [], "soups": ["weights"] * 5, "base": []}
    assert metrics["comparison"]["conditions"] == {"sga": "sensed", "dpo": "none", "soups": "centre", "base": "none"}
    adapters = {name: own["cost"]["adapters"] for name, own in metrics["policies"].items()}
    assert adapters == {"sga": 1, "dpo": 1, "soups": 2, "base": 0}
    assert metrics["policies"]["dpo"]["cost"]["train_seconds"] > 0
    assert metrics["policies"]["dpo"]["held_out"][0]["against"] == "base model"
    assert (trained / "dpo" / "README.md").read_text().startswith(card_before.rstrip("\n"))
    load_policy(trained / "dpo")  # the card in its folder breaks no seal
    lines = [json.loads(line) for line in (trained / "out" / "answers.jsonl").read_text().splitlines()]
    swept = [line for line in lines if line["policy"] == "soups" and line["condition"] == "sweep"]
    assert swept and all(line["answered_weights"] == line["weights"] for line in swept)
    told = {(line["policy"], line["condition"], line["id"]): line["answer"] for line in lines}
    causal, tokenizer = load_backbone(str(tiny_llama), dtype="float32")
    renderer = load_policy(trained / "dpo").renderer
    for line in lines:
        if line["policy"] == "base":
            ids = [*renderer.prefix(line["prompt"]), *renderer.suffix(line["prompt"], None)]
            out = causal.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False)[0, len(ids) :]
            text = tokenizer.decode(out, skip_special_tokens=True)
            assert told["base", "none", line["id"]] == text, "the base model itself, from one of its policies"


def test_answers_that_fit_no_context_are_told_before_a_model_is_loaded(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paretune.policy.load_policy", lambda folder: pytest.fail("a model was loaded"))
    folders = [trained / "sga", trained / "dpo"]
    with pytest.raises(InputError, match=r"found 0.* are too long\. Ask for shorter answers"):
        evaluate(folders, trained / "rows.jsonl", trained / "long", max_new_tokens=100_000)
