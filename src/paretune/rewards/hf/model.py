"""A loaded reward model: all its outputs for a batch of inputs, computed once for the objectives that share it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from paretune.data.rows import Messages
from paretune.rewards.encoder import (
    Encoded,
    load_model,
    load_pretrained,
    read_config,
    read_tensors,
    run_batches,
    spare_token,
    token_limit,
)
from paretune.rewards.hf.heads import PREFIXES, Head, build_head
from paretune.rewards.hf.inputs import Inputs
from paretune.rewards.hf.known import recognise, refuse_own_code

if TYPE_CHECKING:
    import torch


class Network(Protocol):
    """What computes outputs: a classifier of transformers, or a backbone with a head of ours."""

    labels: Sequence[str]
    default: str | None
    model: Any

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Outputs [b, k] of right-padded texts."""

    def pad_id(self, items: Sequence[Encoded]) -> int:
        """The token that pads these texts."""


class Classifier:
    """A sequence classifier of transformers: values of a regression, log-odds of a classification."""

    def __init__(self, model: Any) -> None:
        self.model = model
        names = {int(at): str(name) for at, name in model.config.id2label.items()}
        self.labels: Sequence[str] = [names.get(at, f"LABEL_{at}") for at in range(model.config.num_labels)]
        self.default: str | None = self.labels[0] if len(self.labels) == 1 else None
        problem = model.config.problem_type
        # one output is a value; those of several labels at once are already the log-odds of each
        self.exclusive = len(self.labels) > 1 and problem not in ("regression", "multi_label_classification")

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Outputs [b, k]; of exclusive labels, the log-odds of each against all others."""
        import torch

        logits_BK: torch.Tensor = self.model(**batch).logits.float()
        if not self.exclusive:
            return logits_BK
        count = logits_BK.shape[1]
        others_BKK = logits_BK.unsqueeze(1).expand(-1, count, -1)
        own = torch.eye(count, dtype=torch.bool, device=logits_BK.device)
        return logits_BK - others_BKK.masked_fill(own, -torch.inf).logsumexp(dim=2)

    def pad_id(self, items: Sequence[Encoded]) -> int:
        """The model's own padding token; if it has none, one that no text of the batch contains."""
        config = self.model.config.get_text_config()
        if getattr(config, "pad_token_id", None) is None or getattr(config, "pad_is_ours", False):
            config.pad_token_id = spare_token(items, self.model.get_input_embeddings().num_embeddings)
            config.pad_is_ours = True
        return int(config.pad_token_id)


class Headed:
    """A backbone of transformers and a head of `heads.py`."""

    def __init__(self, model: Any, head: Head) -> None:
        self.model, self.head = model, head
        self.labels, self.default = head.labels, head.default

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """Outputs [b, k]; the head is computed in float32 whatever the backbone's type is."""
        return self.head(self.model(**batch).last_hidden_state.float(), batch)

    def pad_id(self, items: Sequence[Encoded]) -> int:
        """Any token will do: the last one is found by the attention mask."""
        return 0


class RewardModel:
    """A network with its tokenizer. Outputs of the last batch are kept for the next objective that asks for them."""

    def __init__(self, network: Network, tokenizer: Any, location: str, input_kind: str) -> None:
        self.network, self.tokenizer, self.location, self.input_kind = network, tokenizer, location, input_kind
        self.limit = token_limit(tokenizer, network.model.config)
        self._last: tuple[Any, torch.Tensor] | None = None

    def outputs(self, inputs: Inputs, prompts: Sequence[Messages], texts: Sequence[str], tokens: int) -> torch.Tensor:
        """All outputs [n, k], float32 on the CPU; NaN for an input without a token. Batches hold `tokens` tokens."""
        import torch

        asked = (inputs.kind, inputs.limit, list(prompts), list(texts))
        if self._last is not None and self._last[0] == asked:
            return self._last[1]
        encoded = inputs.encode(prompts, texts)
        places = [at for at, item in enumerate(encoded) if item["input_ids"]]
        found_NK = torch.full((len(encoded), len(self.network.labels)), torch.nan)
        if places:
            found_NK[places] = run_batches(
                [encoded[at] for at in places],
                self.network.forward,
                pad_id=self.network.pad_id,
                device=self.network.model.device,
                tokens=tokens,
            )
        self._last = asked, found_NK
        return found_NK


@lru_cache(maxsize=4)
def load_reward_model(location: str, dtype: str, device: str, allow_remote_code: bool) -> RewardModel:
    """A reward model, once a process. Raises `InputError` for one that cannot be loaded or that needs its own code."""
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    config = read_config(location)
    known = recognise(location, config)
    options: dict[str, Any] = {"dtype": dtype, "device": device}
    network: Network
    if known.head:
        # the class is transformers' own; the model's code is not needed even where it is allowed
        model = load_model(AutoModel, location, allow_remote_code=False, head="backbone", **options)
        tokenizer = load_pretrained(AutoTokenizer, location, allow_remote_code=False)
        tensors = read_tensors(location, PREFIXES[known.head])
        head = build_head(known.head, tensors, config, tokenizer, location, model.device)
        network = Headed(model, head)
    else:
        if not allow_remote_code:
            refuse_own_code(location, config)
        options["head"] = "classification head"
        model = load_model(AutoModelForSequenceClassification, location, allow_remote_code=allow_remote_code, **options)
        tokenizer = load_pretrained(AutoTokenizer, location, allow_remote_code=allow_remote_code)
        network = Classifier(model)
    templated = bool(getattr(tokenizer, "chat_template", None))
    return RewardModel(network, tokenizer, location, known.input or ("chat" if templated else "pair"))
