"""`paretune score` with rewards made of others and models of several outputs: what comes out, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tiny_classifiers import LABELS, make_bert, make_headed

ROWS = [
    {"id": "r1", "prompt": "what is tea", "completions": [{"text": "a fine drink made of leaves"}, {"text": "tea"}]},
    {"id": "r2", "prompt": "why", "completions": [{"text": "because air scatters short waves"}]},
]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_an_ensemble_a_gate_and_every_output_of_a_model(invoke: Any, rows: Path, tmp_path: Path) -> None:
    names = dict(enumerate(LABELS))
    (tmp_path / "model").mkdir()
    model = make_bert(tmp_path / "model", id2label=names, label2id={name: at for at, name in names.items()})
    out = tmp_path / "out.jsonl"
    done = invoke(
        "score", rows, "--out", out, "--json",
        "--objective", "even=ensemble:mean(lexical:length, gate:lexical:length if lexical:question > 0 else 2)",
        "--objective", "known=gate:lexical:length if lexical:length > 1 else -1",
        "--objective", f"mood.*=hf:{model}#*?input=answer",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert {each["name"] for each in json.loads(done.stdout)["objectives"]} == {
        "even", "known", *(f"mood_{label}" for label in LABELS),
    }  # fmt: skip
    first, second = json.loads(out.read_text().splitlines()[0])["completions"]
    assert first["scores"]["even"] == 4.0 and second["scores"]["even"] == 1.5
    assert first["scores"]["known"] == 6.0 and second["scores"]["known"] == -1.0
    assert second["details"]["known"] == {"condition": 1.0, "held": False}
    assert first["details"]["even"]["disagreement"] == 2.0
    assert len({first["scores"][f"mood_{label}"] for label in LABELS}) == 3


def test_models_that_are_not_read(refused: Any, rows: Path, tmp_path: Path) -> None:
    import torch

    own = make_headed(tmp_path / "own", "SomebodysRewardModel", {})
    (tmp_path / "pickled").mkdir()
    pickled = make_bert(tmp_path / "pickled")
    (pickled / "model.safetensors").unlink()
    torch.save({}, pickled / "pytorch_model.bin")
    for spec, cause in ((own, "needs Python code that comes with it"), (f"{pickled}#0", "are pickle files")):
        message = refused(
            "score", rows, "--objective", f"x=hf:{spec}", "--out", tmp_path / "out.jsonl", folder=tmp_path
        )
        assert cause in message


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ("ensemble:mean(lexical:brevty, lexical:length)", "Did you mean 'brevity'"),
        ("ensemble:nowhere.yaml", "nowhere.yaml: no such ensemble file"),
        ("gate:lexical:length if lexical:question", "a gate is written"),
        ("hf:model?dtype=int8", "unknown dtype 'int8'"),
    ],
)
def test_specs_that_are_refused_before_anything_is_loaded(
    refused: Any, rows: Path, tmp_path: Path, spec: str, cause: str
) -> None:
    message = refused("score", rows, "--objective", f"x={spec}", "--out", tmp_path / "out.jsonl", folder=tmp_path)
    assert cause in message
