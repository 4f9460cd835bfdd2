"""`hf:MODEL[#label|#index][?input=KIND]`: a sequence classifier or reward model of transformers.

What the model reads, by `input`:
- `chat`: the conversation with the answer, in the tokenizer's chat template (the default where it has one);
- `pair`: prompt and answer as the tokenizer's two segments (the default otherwise); a conversation of several messages
  is written out as "User: ..." and "Assistant: ..." paragraphs;
- `hh`: as `pair`, the prompt written as an HH-RLHF transcript ("\\n\\nHuman: ...\\n\\nAssistant:");
- `answer`: the answer alone (toxicity, sentiment).

The raw score is the model's only output, or of several the one named by label or index: its value for a regression, its
log-odds for a classifier (unlike the probability they keep the order of answers near 0 and 1). Input that is too long
loses the beginning of its prompt first. Weights are read from safetensors only and no remote code runs unless allowed.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from paretune.data.rows import Messages
from paretune.errors import InputError, did_you_mean
from paretune.rewards.base import RewardKind
from paretune.rewards.encoder import (
    Encoded,
    load_model,
    load_pretrained,
    locate_model,
    run_batches,
    spare_token,
    token_limit,
)

if TYPE_CHECKING:
    import torch

INPUTS = ("chat", "pair", "hh", "answer")


@lru_cache(maxsize=4)
def load_classifier(location: str, allow_remote_code: bool) -> tuple[Any, Any]:
    """(tokenizer, model), once a process."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = load_model(
        AutoModelForSequenceClassification, location, allow_remote_code=allow_remote_code, head="classification head"
    )
    return load_pretrained(AutoTokenizer, location, allow_remote_code=allow_remote_code), model


class ClassifierReward:
    """One output of a sequence classifier."""

    can_score_new = True

    def __init__(self, model: str, label: str, kind: str, *, allow_remote_code: bool) -> None:
        self.location = location = locate_model(model)
        self.tokenizer, self.model = load_classifier(location, allow_remote_code)
        self.index = _output_index(self.model.config, label, location)
        templated = bool(getattr(self.tokenizer, "chat_template", None))
        self.kind = kind or ("chat" if templated else "pair")
        if self.kind == "chat" and not templated:
            raise InputError(f"the tokenizer of '{location}' has no chat template; use ?input=pair")
        self.limit = token_limit(self.tokenizer, self.model.config)

    def __call__(
        self, prompts: list[Messages], completions: list[str], columns: dict[str, list[Any]]
    ) -> list[float | None]:
        """The output for each answer; None where the model gives no finite number."""
        encoded = [self._encode(prompt, text) for prompt, text in zip(prompts, completions, strict=True)]
        logits_NK = run_batches(encoded, self._forward, pad_id=self._pad_id, device=self.model.device)
        return [value if math.isfinite(value) else None for value in self._scores(logits_NK).tolist()]

    def _forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.model(**batch).logits
        return logits

    def _pad_id(self, items: Any) -> int:
        """The model's own padding token; if it has none, one that no text of the batch contains."""
        config = self.model.config.get_text_config()
        if getattr(config, "pad_token_id", None) is None or getattr(config, "pad_is_ours", False):
            config.pad_token_id = spare_token(items, self.model.get_input_embeddings().num_embeddings)
            config.pad_is_ours = True
        return int(config.pad_token_id)

    def _scores(self, logits_NK: torch.Tensor) -> torch.Tensor:
        import torch

        chosen_N = logits_NK[:, self.index]
        kind = self.model.config.problem_type
        if logits_NK.shape[1] == 1 or kind in ("regression", "multi_label_classification"):
            return chosen_N  # a value, or already the log-odds of its label
        others = [at for at in range(logits_NK.shape[1]) if at != self.index]
        return chosen_N - torch.logsumexp(logits_NK[:, others], dim=1)

    def _encode(self, prompt: Messages, text: str) -> Encoded:
        if self.kind == "chat":
            whole = [*prompt, {"role": "assistant", "content": text}]
            try:
                rendered = self.tokenizer.apply_chat_template(whole, tokenize=False)
            except Exception as error:  # a template refuses roles or orders by raising its own error
                raise InputError(f"the chat template of '{self.location}' refuses a prompt: {error}") from error
            # the template has written the special tokens; adding them again would double the first
            return self._cut(dict(self.tokenizer(rendered, add_special_tokens=False)))
        if self.kind == "answer":
            self.tokenizer.truncation_side = "right"
            return dict(self.tokenizer(text, truncation=True, max_length=self.limit))
        return self._encode_pair(_transcript(prompt) if self.kind == "hh" else _plain(prompt), text)

    def _encode_pair(self, first: str, second: str) -> Encoded:
        whole = dict(self.tokenizer(first, second))
        if len(whole["input_ids"]) <= self.limit:
            return whole
        answer = len(self.tokenizer(second, add_special_tokens=False)["input_ids"])
        special = self.tokenizer.num_special_tokens_to_add(pair=True)
        # the prompt gives way, from its beginning; an answer that fills the input alone loses its end
        fits = answer + special < self.limit
        self.tokenizer.truncation_side = "left" if fits else "right"
        strategy = "only_first" if fits else "longest_first"
        return dict(self.tokenizer(first, second, truncation=strategy, max_length=self.limit))

    def _cut(self, encoded: dict[str, list[int]]) -> Encoded:
        """The end of a rendered conversation: the answer and its closing tokens stand there."""
        return {name: values[-self.limit :] for name, values in encoded.items()}


def _plain(prompt: Messages) -> str:
    if len(prompt) == 1:
        return prompt[0]["content"]
    return "\n\n".join(f"{message['role'].capitalize()}: {message['content']}" for message in prompt)


def _transcript(prompt: Messages) -> str:
    speakers = {"user": "Human", "assistant": "Assistant", "system": "Human"}
    turns = "".join(f"\n\n{speakers[message['role']]}: {message['content']}" for message in prompt)
    return f"{turns}\n\nAssistant:"


def _output_index(config: Any, label: str, location: str) -> int:
    """Which output a label or index names; a model of several outputs needs one."""
    labels = {str(name): int(at) for at, name in config.id2label.items()}
    if not label:
        if config.num_labels > 1:
            raise InputError(
                f"the model '{location}' has {config.num_labels} outputs; name one: hf:MODEL#label "
                f"({', '.join(labels)})"
            )
        return 0
    if label in labels:
        return labels[label]
    if label.isdecimal() and int(label) < config.num_labels:
        return int(label)
    raise InputError(f"the model '{location}' has no output '{label}'.{did_you_mean(label, labels)}")


def _split(rest: str) -> tuple[str, str, str]:
    """MODEL, label, input."""
    where, question, option = rest.partition("?input=")
    if question and option not in INPUTS:
        raise InputError(f"unknown input '{option}' in 'hf:{rest}'.{did_you_mean(option, INPUTS)}")
    model, _, label = where.partition("#")
    if not model:
        raise InputError("hf: needs a model folder or hub id: hf:MODEL[#label]")
    return model, label, option


def _check(rest: str) -> None:
    _split(rest)


def _build(rest: str, allow_remote_code: bool) -> ClassifierReward:
    model, label, kind = _split(rest)
    return ClassifierReward(model, label, kind, allow_remote_code=allow_remote_code)


KIND = RewardKind(
    prefix="hf",
    listed=(("hf:MODEL[#label]", "a transformers sequence classifier or reward model (?input=chat|pair|hh|answer)"),),
    build=_build,
    check=_check,
)
