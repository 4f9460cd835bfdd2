"""AlpacaEval's model outputs (one answer of one model a record) and Alpaca's instructions with one answer each."""

from __future__ import annotations

from typing import Any

from paretune.data.adapters.base import RESERVED, Adapter, Raw, has, prompt_text, rest, text

_ROW = ("prompt", "completion", "completions", "chosen", "rejected", "wanted", "preferences")


def _outputs_row(record: Raw) -> dict[str, Any]:
    kept = rest(record, ("instruction", "output", "generator"), (*RESERVED, "model"))
    answer = {**kept, "text": text(record, "output"), "model": text(record, "generator")}
    return {"prompt": prompt_text(record, "instruction"), "completions": [answer]}


def _instruction_row(record: Raw) -> dict[str, Any]:
    prompt = prompt_text(record, "instruction")
    if (record.get("input") or "") != "":
        prompt = f"{prompt}\n\n{text(record, 'input')}"
    return {
        **rest(record, ("instruction", "input", "output"), _ROW),
        "prompt": prompt,
        "completion": text(record, "output"),
    }


OUTPUTS = Adapter(
    "alpaca-eval",
    "model outputs of AlpacaEval; `data convert` joins the files of many models",
    "instruction, output, generator",
    lambda record: has(record, "instruction", "output", "generator"),
    must=("instruction", "output", "generator"),
    row=_outputs_row,
    merges=True,
)
ALPACA = Adapter(
    "alpaca",
    "Alpaca instructions with an answer",
    "instruction, output (input)",
    lambda record: has(record, "instruction", "output") and not has(record, "generator"),
    must=("instruction", "output"),
    row=_instruction_row,
)
