"""Published reward models that are known by name or architecture: what they read and what computes their outputs.

| models | known by | reads | outputs | source |
|---|---|---|---|---|
| OpenAssistant/reward-model-deberta-v3-* | name | `pair` | one | model card: `tokenizer(question, answer)` |
| Ray2333/gpt2-large-{helpful,harmless}-reward_model | name | `hh` | one | model card: `tokenizer(q, a)` with q an HH
  transcript that ends with "Assistant:" |
| Ray2333/GRM-*-sftreg | name, `GRewardModel` | `chat` | one | Yang et al. 2024; reward-bench's models/grm.py |
| RLHFlow/ArmoRM-Llama3-8B-v0.1 | `LlamaForRewardModelWithGating` | `chat` | 19 attributes and `score` | model card and
  modeling_custom.py (Wang et al. 2024) |
| PKU-Alignment/beaver-7b-*-{reward,cost} | `LlamaForScore`, `LlamaModelForScore` | `beaver` | one | model card and
  safe-rlhf's score_model (Dai et al. 2024) |

All else is what transformers itself calls a sequence classifier (FsfairX, Skywork, the plain GRM models among them): it
reads `chat` where its tokenizer has a chat template and `pair` where not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paretune.errors import InputError

ARMO_ATTRIBUTES = (
    "helpsteer-helpfulness",
    "helpsteer-correctness",
    "helpsteer-coherence",
    "helpsteer-complexity",
    "helpsteer-verbosity",
    "ultrafeedback-overall_score",
    "ultrafeedback-instruction_following",
    "ultrafeedback-truthfulness",
    "ultrafeedback-honesty",
    "ultrafeedback-helpfulness",
    "beavertails-is_safe",
    "prometheus-score",
    "argilla-overall_quality",
    "argilla-judge_lm",
    "code-complexity",
    "code-style",
    "code-explanation",
    "code-instruction-following",
    "code-readability",
)
"""The rows of ArmoRM's regression layer, in order (its model card)."""


@dataclass(frozen=True)
class Known:
    """What is known of a model. `head` is "" for a sequence classifier of transformers."""

    input: str = ""
    head: str = ""


_BY_NAME = (
    (r"reward-model-deberta-v3-(base|large)", Known("pair")),
    (r"gpt2-large-(helpful|harmless)-reward_model", Known("hh")),
    (r"GRM-[\w.-]+-sftreg", Known("chat", "value")),
)
_BY_ARCHITECTURE = {
    "GRewardModel": Known("chat", "value"),
    "LlamaForRewardModelWithGating": Known("chat", "gated"),
    "LlamaForScore": Known("beaver", "score"),
    "LlamaModelForScore": Known("beaver", "score"),
}


def recognise(location: str, config: Mapping[str, Any]) -> Known:
    """What is known of the model in a folder or with a hub id, from its config.json and its name."""
    for architecture in config.get("architectures") or ():
        if architecture in _BY_ARCHITECTURE:
            return _BY_ARCHITECTURE[architecture]
    names = f"{location} {config.get('_name_or_path', '')}"
    return next((known for pattern, known in _BY_NAME if re.search(pattern, names)), Known())


def refuse_own_code(location: str, config: Mapping[str, Any]) -> None:
    """Refuses a model that only code of its own can compute, as its config.json says."""
    own = config.get("auto_map") or {}
    if not own or not {"AutoConfig", "AutoModel", "AutoModelForSequenceClassification"} & set(own):
        return
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as classifiers

    architectures = config.get("architectures") or []
    if config.get("model_type") in classifiers and set(architectures) & set(classifiers.values()):
        return  # transformers has the class itself; the model's copy of it is not needed
    named = architectures[0] if architectures else "of an unknown architecture"
    raise InputError(
        f"the model '{location}' ({named}) needs Python code that comes with it, which is not run. Read that code, and "
        "if you trust it, --allow-remote-code (in Python allow_remote_code=True) runs it"
    )


def output_names(location: str, config: Mapping[str, Any]) -> list[str]:
    """The labels of a model's outputs, from its config.json alone."""
    head = recognise(location, config).head
    if head == "gated":
        return gated_names(int(config.get("num_objectives", len(ARMO_ATTRIBUTES))))
    if head == "value":
        return ["reward"]
    if head == "score":
        return score_names(int(config.get("score_dim", 1)), str(config.get("score_type", "reward")))
    labels = config.get("id2label")
    if labels:
        return [str(labels[key]) for key in sorted(labels, key=int)]
    return [f"LABEL_{at}" for at in range(int(config.get("num_labels", 2)))]


def gated_names(count: int) -> list[str]:
    """ArmoRM's attributes, then the gated sum of them, which its authors call `score`."""
    known = count == len(ARMO_ATTRIBUTES)
    return [*(ARMO_ATTRIBUTES if known else (f"attribute_{at}" for at in range(count))), "score"]


def score_names(count: int, kind: str) -> list[str]:
    """A safe-rlhf score model's outputs: `reward` or `cost`, as its config says."""
    return [kind] if count == 1 else [f"{kind}_{at}" for at in range(count)]
