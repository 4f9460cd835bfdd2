"""The whole way on a real, tiny, untrained policy: nothing is expected of its answers, everything of the report."""

from __future__ import annotations

import json
from pathlib import Path

from paretune.data import store_objectives
from paretune.evaluation import CONDITIONS, evaluate
from paretune.methods import train
from paretune.profile import Objective


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
