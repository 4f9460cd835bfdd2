"""What alignment cost: values are lm-eval's, differences are paired over documents, and the words fit the numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paretune.bootstrap import Bootstrap, Estimate
from paretune.errors import InputError
from paretune.harness import benchmark
from paretune.harness.comparison import Measure, headline, measures
from paretune.harness.lm import PolicyLM
from paretune.harness.tasks import load_tasks, run_tasks
from paretune.policy import Policy


def by_name(report: dict[str, Any]) -> dict[str, Any]:
    """Results by task and metric."""
    return {f"{each['task']}/{each['metric']}": each for each in report["results"]}


def test_values_and_differences(
    task_folder: Path, make_policy: Callable[..., Policy], tiny_qwen: Path, tmp_path: Path
) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    names = ["tiny_choice", "tiny_text", "tiny_answer"]
    policy = make_policy(tiny_qwen)
    out = tmp_path / "cost.json"
    report = benchmark(policy, names, out, include_path=task_folder, bootstrap=200)
    assert json.loads(out.read_text()) == report
    assert report["requests"]["policy"] == {"plain": 60, "chat": 0, "conditioned": 0, "truncated": 0}
    assert report["requests"]["policy"] == report["requests"]["base"]
    manager = TaskManager(include_path=str(task_folder), include_defaults=False)
    sides = {}
    with policy.peft.disable_adapter():
        sides["base"] = HFLM(pretrained=policy.causal, tokenizer=policy.tokenizer, batch_size=4)
        theirs = {"base": simple_evaluate(sides["base"], tasks=names, task_manager=manager, bootstrap_iters=0)}
    merged = HFLM(pretrained=policy.fuse().causal, tokenizer=policy.tokenizer, batch_size=4)
    theirs["policy"] = simple_evaluate(merged, tasks=names, task_manager=manager, bootstrap_iters=0)
    found = by_name(report)
    for side in ("policy", "base"):
        for name in ("tiny_choice/acc", "tiny_choice/acc_norm", "tiny_text/word_perplexity", "tiny_answer/exact_match"):
            task, metric = name.split("/")
            expected = theirs[side]["results"][task][f"{metric},none"]
            assert found[name][side]["value"] == pytest.approx(expected, rel=1e-4)
    acc = found["tiny_choice/acc"]
    values = {
        side: np.array([sample["acc"] for sample in theirs[side]["samples"]["tiny_choice"]])
        for side in ("policy", "base")
    }
    assert acc["n"] == 12 and acc["higher_is_better"] is True
    assert acc["policy"]["stderr"] == pytest.approx(values["policy"].std(ddof=1) / math.sqrt(12))
    expected = Bootstrap(200).mean(values["policy"] - values["base"])
    assert acc["difference"] == expected.to_dict()
    text = found["tiny_text/word_perplexity"]
    assert text["difference"]["value"] == pytest.approx(text["policy"]["value"] - text["base"]["value"])
    assert text["difference"]["low"] < text["difference"]["value"] < text["difference"]["high"]
    worse = text["difference"]["low"] > 0
    assert text["outcome"] == ("lost" if worse else "gained" if text["difference"]["high"] < 0 else "none shown")


def test_a_chat_benchmark_conditions_the_policy_alone(task_folder: Path, policy_folder: Path, tmp_path: Path) -> None:
    report = benchmark(
        policy_folder, ["tiny_choice"], include_path=task_folder, chat=True, pins={"cheer": 0.5}, limit=5, num_fewshot=2
    )
    assert report["requests"] == {
        "policy": {"plain": 0, "chat": 15, "conditioned": 15, "truncated": 0},
        "base": {"plain": 0, "chat": 15, "conditioned": 0, "truncated": 0},
    }
    assert report["settings"]["condition"] == "sensed" and report["few_shot"] == {"tiny_choice": 2}
    assert all(each["n"] == 5 and each["difference"]["n"] == 5 for each in report["results"])


def test_one_model_alone(task_folder: Path, make_policy: Callable[..., Policy], tiny_qwen: Path) -> None:
    policy = make_policy(tiny_qwen)
    for models in ("policy", "base"):
        report = benchmark(policy, ["tiny_choice"], include_path=task_folder, models=models, limit=4)
        assert list(report["requests"]) == [models] and report["verdict"] is None
        assert all(models in each and "difference" not in each for each in report["results"])


def test_a_group_is_compared_over_all_its_documents(
    task_folder: Path, make_policy: Callable[..., Policy], tiny_qwen: Path
) -> None:
    second = (task_folder / "tiny_choice.yaml").read_text().replace("task: tiny_choice", "task: tiny_second")
    (task_folder / "second.yaml").write_text(second.replace("question}}", "question}} Well?"))
    (task_folder / "group.yaml").write_text(
        "group: tiny_both\ntask: [tiny_choice, tiny_second]\n"
        "aggregate_metric_list:\n  - {metric: acc, aggregation: mean, weight_by_size: true}\n"
    )
    from lm_eval.tasks import TaskManager

    loaded = TaskManager(include_path=str(task_folder), include_defaults=False).load(["tiny_both"])
    policy = make_policy(tiny_qwen)
    runs = [run_tasks(PolicyLM(policy, base=base), loaded) for base in (False, True)]
    found = measures(*runs, loaded, Bootstrap(100))
    (group,) = [each for each in found if each.group]
    parts = [each for each in found if not each.group and each.metric == "acc"]
    assert group.task == "tiny_both" and group.n == 24 and [each.n for each in parts] == [12, 12]
    assert group.difference.value == pytest.approx(np.mean([each.difference.value for each in parts]))


def measure(low: float, value: float, high: float, better: bool | None = True, task: str = "arc") -> Measure:
    """A measure with this difference."""
    return Measure(task, "acc", "none", 9, better, (0.5, 0.1), (0.5, 0.1), Estimate(value, low, high, 9))


def test_the_words_fit_the_numbers() -> None:
    lost, none, gained = measure(-0.05, -0.03, -0.01), measure(-0.02, 0.01, 0.03), measure(0.01, 0.02, 0.04)
    assert lost.text == "acc of arc: lost 0.030 [0.010, 0.050]"
    assert none.text == "acc of arc: no loss is shown (policy minus base 0.010 [-0.020, 0.030])"
    assert gained.text == "acc of arc: gained 0.020 [0.010, 0.040]"
    assert measure(0.1, 0.2, 0.3, False).text == "acc of arc: lost 0.200 [0.100, 0.300]"  # a perplexity that rose
    assert measure(-0.3, -0.2, -0.1, False).outcome == "gained"
    assert measure(0.1, 0.2, 0.3, None).outcome == "not compared"
    assert headline([none]) == "No loss is shown."
    assert headline([none, gained]) == "No loss is shown on 2 measures; 1 gained."
    assert headline([lost]) == "Lost: acc of arc: lost 0.030 [0.010, 0.050]."
    assert headline([none, lost]) == "Lost on 1 of 2 measures: acc of arc: lost 0.030 [0.010, 0.050]."
    assert headline([]) == "Nothing could be compared."


def test_other_requests_are_not_compared() -> None:
    class Task:
        task_name = "t"

        def aggregation(self) -> dict[str, Any]:
            return {"acc": np.mean}

    def results(prompt: str) -> dict[str, Any]:
        sample = {"doc_id": 0, "prompt_hash": prompt, "filter": "none", "acc": 1.0}
        values = {"name": "t", "alias": "t", "sample_len": 1, "acc,none": 1.0, "acc_stderr,none": "N/A"}
        return {"results": {"t": values}, "samples": {"t": [sample]}, "higher_is_better": {"t": {"acc": True}}}

    (found,) = measures(results("a"), results("b"), {"tasks": {"t": Task()}, "groups": {}}, Bootstrap(10))
    assert found.text == "acc of t: not compared, the task gave the two models different requests"
    assert found.policy == (1.0, None)


def test_tasks_that_cannot_be_had(task_folder: Path, tmp_path: Path) -> None:
    gone = (task_folder / "tiny_choice.yaml").read_text().replace("tiny_choice", "tiny_gone")
    (task_folder / "gone.yaml").write_text(gone.replace("dataset_path: json", "dataset_path: nobody/nothing_here"))
    for names, text in [
        ([], "no task is named"),
        ([" "], "no task is named"),
        (["tiny_choice", "tiny_choice"], "named twice"),
        (["tiny_gone"], "'tiny_gone' cannot be loaded.*network"),
    ]:
        with pytest.raises(InputError, match=text):
            load_tasks(names, task_folder)
    with pytest.raises(InputError, match="no folder of tasks"):
        load_tasks(["tiny_choice"], tmp_path / "nowhere")


def test_an_unknown_task_gets_the_nearest_names(task_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lm_eval.tasks import TaskManager

    own = TaskManager(include_path=str(task_folder), include_defaults=False)  # lm-eval's own take half a minute to read
    monkeypatch.setattr("paretune.harness.tasks._manager", lambda *_: own)
    with pytest.raises(InputError, match=r"no task, group or tag 'tiny_chioce'. Did you mean tiny_choice"):
        load_tasks(["tiny_chioce"], task_folder)


def test_settings_that_cannot_be(task_folder: Path, policy_folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("{}")
    for options, text in [
        ({"limit": 0}, "limit must be at least 1"),
        ({"limit": 1.5}, "whole number"),
        ({"models": "neither"}, "models must be one of"),
        ({"bootstrap": 0}, "bootstrap"),
        ({"condition": "ones"}, "pass --chat"),
        ({"pins": {"cheer": 0.5}}, "pass --chat"),
        ({"chat": True, "condition": "sensible"}, "unknown condition"),
        ({"chat": True, "condition": "ones", "models": "base"}, "not conditioned"),
        ({"weights": {"cheer": 1.0}}, "pass --chat"),
        ({"chat": True, "weights": {"cheer": 1.0}}, "takes no preference weights"),
        ({"out": there}, "exists already"),
    ]:
        with pytest.raises(InputError, match=text):
            benchmark(policy_folder, ["tiny_choice"], include_path=task_folder, **options)
    assert there.read_text() == "{}"


def test_without_lm_eval_the_extra_is_named(policy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paretune.harness.package.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install "paretune\[lm-eval\]"'):
        benchmark(policy_folder, ["arc_easy"])
