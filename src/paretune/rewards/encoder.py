"""What `hf:` and `embed:` share: safe loading, the length limit, and batches whose padding changes no score."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretune.data.sources import HUB_ID
from paretune.errors import InputError

if TYPE_CHECKING:
    import torch

Encoded = dict[str, list[int]]
"""One text's `input_ids`, `attention_mask` and, for models that have them, `token_type_ids`."""

TOKENS_A_BATCH = 8192


def locate_model(model: str) -> str:
    """A model folder as an absolute path, or a hub id as it is. Raises `InputError` for anything else."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError("is a folder but no model (it has no config.json)", file=path)
        return str(path.resolve())
    if path.exists():
        raise InputError("is a file; a model folder is needed", file=path)
    if not HUB_ID.fullmatch(model) and ("/" in model or model.startswith(".") or not model):
        raise InputError("no such model folder", file=model)
    return model


def load_pretrained(auto: Any, location: str, *, allow_remote_code: bool, **options: Any) -> Any:
    """`from_pretrained` that runs no code and no pickle from the model, and tells failures as `InputError`."""
    try:
        return auto.from_pretrained(location, trust_remote_code=allow_remote_code, **options)
    except Exception as error:  # not there, no network, another kind of model, a broken file: transformers raises many
        text = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"the model '{location}' cannot be loaded: {text}") from error


def load_model(auto: Any, location: str, *, allow_remote_code: bool, head: str | None) -> Any:
    """A model in evaluation mode, on the GPU if there is one: float32 on a CPU, the saved type on a GPU.

    Weights come from safetensors only. With `head`, a model whose weights lack any tensor is refused: transformers
    would fill it with random numbers, and the scores would be noise.
    """
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    options: dict[str, Any] = {"dtype": "auto" if device == "cuda" else torch.float32, "use_safetensors": True}
    with _quiet():
        model, report = load_pretrained(
            auto, location, allow_remote_code=allow_remote_code, output_loading_info=True, **options
        )
    missing = sorted(report["missing_keys"])
    if missing and head is not None:
        raise InputError(f"the model '{location}' has no trained {head}: its weights lack {', '.join(missing[:3])}")
    return model.to(device).eval()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers' loading bar and table of unexpected weights: what matters of it is raised as an error."""
    from transformers.utils import logging as told

    level, bar = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity_error()
    told.disable_progress_bar()
    try:
        yield
    finally:
        told.set_verbosity(level)
        if bar:
            told.enable_progress_bar()


def token_limit(tokenizer: Any, config: Any) -> int:
    """The longest input the model takes, in tokens."""
    config = config.get_text_config()
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 1 << 20
    if "roberta" in str(config.model_type) or config.model_type == "camembert":
        positions -= (config.pad_token_id or 0) + 1  # these count positions from after the padding index
    return int(min(positions, tokenizer.model_max_length))


def in_batches(encoded: Sequence[Encoded], tokens: int = TOKENS_A_BATCH) -> Iterator[list[int]]:
    """Places of `encoded` in batches of similar length, longest first, each of at most `tokens` padded tokens."""
    order = sorted(range(len(encoded)), key=lambda at: -len(encoded[at]["input_ids"]))
    start = 0
    while start < len(order):
        size = max(1, tokens // max(1, len(encoded[order[start]]["input_ids"])))
        yield order[start : start + size]
        start += size


def run_batches(
    encoded: Sequence[Encoded],
    forward: Callable[[dict[str, torch.Tensor]], torch.Tensor],
    *,
    pad_id: Callable[[Sequence[Encoded]], int],
    device: Any,
) -> torch.Tensor:
    """`forward` (batch of padded tensors [b, t] -> [b, ...]) over all of `encoded`, in its order; float32 on the CPU.

    Padding is to the right and masked; `pad_id` says which token it is.
    """
    import torch

    out: list[tuple[int, torch.Tensor]] = []
    with torch.inference_mode():
        for places in in_batches(encoded):
            items = [encoded[at] for at in places]
            values = forward({name: item.to(device) for name, item in _padded(items, pad_id(items)).items()})
            out += zip(places, values.float().cpu(), strict=True)
    return torch.stack([value for _, value in sorted(out, key=lambda item: item[0])])


def _padded(items: Sequence[Encoded], pad_id: int) -> dict[str, torch.Tensor]:
    import torch

    longest = max(len(item["input_ids"]) for item in items)
    fill = {"input_ids": pad_id}
    return {
        name: torch.tensor([item[name] + [fill.get(name, 0)] * (longest - len(item[name])) for item in items])
        for name in items[0]
    }


def spare_token(items: Sequence[Encoded], vocabulary: int) -> int:
    """A token that none of the items contains.

    Decoders find the last token of a text as the last that is not padding. A model that names no padding token can be
    given any, if only no text contains it: its embedding is masked.
    """
    used = {token for item in items for token in item["input_ids"]}
    return next(token for token in range(vocabulary - 1, -1, -1) if token not in used)
