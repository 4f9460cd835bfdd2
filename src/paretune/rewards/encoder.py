"""What `hf:` and `embed:` share: safe loading, the length limit, and batches whose padding changes no score."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paretune.data.sources import HUB_ID
from paretune.errors import InputError
from paretune.pretrained import from_pretrained

if TYPE_CHECKING:
    import torch

Encoded = dict[str, list[int]]
"""One text's `input_ids`, `attention_mask` and, for models that have them, `token_type_ids`."""

TOKENS_A_BATCH = 8192
_READ_FILES = (".safetensors", ".json", ".jinja", ".model", ".txt", ".py")
"""The files of a model folder that scores depend on: weights, tokenizer, chat template, code where it is allowed."""


def locate_model(model: str) -> str:
    """A model folder as an absolute path, or a hub id as it is. Raises `InputError` for anything else.

    What looks like a path, or has a folder for its first part, is never asked of the hub: it is a slip of the pen.
    """
    if not isinstance(model, (str, Path)) or not str(model).strip() or "\0" in str(model):
        raise InputError(f"a model is a folder or a hub id, found {model!r:.100}")
    model = str(model)
    path = Path(model).expanduser()
    if os.path.isdir(path):
        if not (path / "config.json").is_file():
            raise InputError("is no model folder (it has no config.json)", file=path)
        return str(path.resolve())
    if os.path.exists(path):
        raise InputError("is a file; a model folder is needed", file=path)
    is_path = model.startswith((".", "~", "/")) or (not HUB_ID.fullmatch(model) and "/" in model)
    if is_path:
        raise InputError("no such model folder", file=model)
    if "/" in model and path.parent.is_dir():
        told = f"no such model folder in the folder '{path.parent}' here; for a model of the hub, run from elsewhere"
        raise InputError(told, file=model)
    return model


def folder_digest(model: str) -> str:
    """A hash of a model folder: its config, and names, sizes and times of its other files. "" for a hub id.

    Files one folder down belong to it: there sentence encoders say how they pool.
    """
    folder = Path(model).expanduser()
    if not model or not folder.is_dir():
        return ""
    files = sorted(path for path in [*folder.glob("*"), *folder.glob("*/*")] if path.suffix in _READ_FILES)
    told = [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    config = folder / "config.json"
    others = [item for item in told if item[0] != config.name]
    return hashlib.sha256((config.read_bytes() if config.is_file() else b"") + repr(others).encode()).hexdigest()


def read_config(location: str) -> dict[str, Any]:
    """A model's config.json, read as data: no class of the model is built, none of its code runs."""
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(location)
    except Exception as error:
        raise _not_loaded(location, error) from error
    return dict(config)


def read_tensors(location: str, prefixes: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The saved tensors whose names begin with one of `prefixes`, as float32; of safetensors files only."""
    import torch
    from safetensors import safe_open
    from transformers.utils.hub import cached_file

    def file(name: str) -> str | None:
        path: str | None = cached_file(location, name, _raise_exceptions_for_missing_entries=False)
        return path

    found: dict[str, torch.Tensor] = {}
    try:
        index = file("model.safetensors.index.json")
        names = ["model.safetensors"]
        if index:
            places: dict[str, str] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
            names = sorted({shard for name, shard in places.items() if name.startswith(prefixes)})
        for shard in filter(None, map(file, names)):
            with safe_open(shard, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    if name.startswith(prefixes):
                        found[name] = tensors.get_tensor(name).to(torch.float32)
    except Exception as error:
        raise _not_loaded(location, error) from error
    return found


def load_pretrained(auto: Any, location: str, *, allow_remote_code: bool, **options: Any) -> Any:
    """`from_pretrained` that runs no code and no pickle from the model, and tells failures as `InputError`."""
    try:
        return from_pretrained(auto, location, allow_remote_code=allow_remote_code, **options)
    except Exception as error:  # not there, no network, another kind of model, a broken file: transformers raises many
        raise _not_loaded(location, error) from error


def _not_loaded(location: str, error: Exception) -> InputError:
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    from_hub = not Path(location).is_dir()
    hint = f". {_convert(location)}" if from_hub and "safetensors" in text and "file named" in text else ""
    return InputError(f"the model '{location}' cannot be loaded: {text}{hint}")


def _convert(location: str) -> str:
    load = f"AutoModelForSequenceClassification.from_pretrained('{location}')"
    return (
        "Weights are read from safetensors files only, because pickle files (.bin) can run code. If you trust these, "
        f"convert them once: from transformers import *; {load}.save_pretrained('NEW'); "
        f"AutoTokenizer.from_pretrained('{location}').save_pretrained('NEW')"
    )


def check_weights(location: str) -> None:
    """Refuses a folder whose only weights are pickle files, and says how to convert them."""
    folder = Path(location)
    if folder.is_dir() and not any(folder.glob("*.safetensors")) and any(folder.glob("*.bin")):
        raise InputError(f"the model '{location}' cannot be loaded: its weights are pickle files. {_convert(location)}")


def pick_device(device: str = "") -> str:
    """`device` if it is there, or without one the GPU if there is one. Raises `InputError` for a device that is not."""
    import torch

    if not device:
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = device.partition(":")
    there = (
        kind == "cpu"
        or (kind == "cuda" and torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count())
        or (kind == "mps" and torch.backends.mps.is_available())
    )
    if not there:
        raise InputError(f"this machine has no device '{device}' that PyTorch can use; leave device= out")
    return device


def load_model(
    auto: Any, location: str, *, allow_remote_code: bool, head: str | None, dtype: str = "", device: str = ""
) -> Any:
    """A model in evaluation mode, on the GPU if there is one: float32 on a CPU, the saved type elsewhere.

    `dtype` and `device` overrule that. Weights come from safetensors only. With `head`, a model whose weights lack any
    tensor is refused: transformers would fill it with random numbers, and the scores would be noise.
    """
    import torch

    check_weights(location)
    device = pick_device(device)
    dtype = dtype or ("float32" if device == "cpu" else "auto")
    options: dict[str, Any] = {"dtype": "auto" if dtype == "auto" else getattr(torch, dtype), "use_safetensors": True}
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
    tokens: int = TOKENS_A_BATCH,
) -> torch.Tensor:
    """`forward` (batch of padded tensors [b, t] -> [b, ...]) over all of `encoded`, in its order; float32 on the CPU.

    Padding is to the right and masked; `pad_id` says which token it is. A batch has at most `tokens` padded tokens.
    """
    import torch

    out: list[tuple[int, torch.Tensor]] = []
    with torch.inference_mode():
        for places in in_batches(encoded, tokens):
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
