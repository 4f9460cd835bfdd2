"""The backbone: loading a causal language model and its tokenizer, and the three pieces we use of it.

`decoder` gives last-layer hidden states, `project` turns the few hidden states that need logits into logits, and
`choose_dtype` says in which precision a device computes fastest.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from paretune.errors import InputError, did_you_mean
from paretune.pretrained import from_pretrained
from paretune.rewards.encoder import locate_model

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64, "float16": torch.float16}

ATTENDING = {"full_attention", "sliding_attention", "chunked_attention"}  # layer types whose state is keys and values


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the device multiplies it natively (GPUs, CPUs with AMX), else float32."""
    if name == "auto":
        native = torch.cpu._is_amx_tile_supported() if device.type == "cpu" else True
        return torch.bfloat16 if native else torch.float32
    if not isinstance(name, str) or name not in DTYPES:
        raise InputError(f"unknown dtype '{name}'.{did_you_mean(str(name), [*DTYPES, 'auto'])}")
    return DTYPES[name]


def choose_device(name: str | None = None) -> torch.device:
    """The named device, else the first accelerator, else the CPU."""
    if name:
        try:
            return torch.device(name)
        except RuntimeError:
            raise InputError(f"unknown device '{name}'; examples: cpu, cuda, cuda:1, mps") from None
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")


def load_backbone(model: str, *, dtype: str = "auto", device: str | None = None) -> tuple[Any, Any]:
    """Load (causal LM in eval mode, tokenizer) from a local folder or a hub id, without remote code.

    Raises `InputError` when it is not a causal language model with a tokenizer.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = locate_model(model)
    where = choose_device(device)
    precision = choose_dtype(dtype, where)
    quiet_transformers()
    try:
        tokenizer = from_pretrained(AutoTokenizer, model)
        causal, info = from_pretrained(
            AutoModelForCausalLM,
            model,
            dtype=precision,
            use_safetensors=True,  # the other formats are pickles
            low_cpu_mem_usage=True,
            output_loading_info=True,
        )
    except Exception as error:  # transformers, huggingface_hub and safetensors each raise kinds of their own
        raise InputError(f"cannot be loaded as a causal language model: {reason(error)}", file=model) from error
    if type(causal).__name__ not in _causal_names():
        raise InputError(f"is a {type(causal).__name__}, not a causal language model", file=model)
    missing = sorted(info["missing_keys"])
    if missing:  # transformers would go on with random weights (the LM head of a classifier, say)
        raise InputError(
            f"is no whole causal language model: {len(missing)} weights are missing, such as {missing[0]}", file=model
        )
    check_attends(causal)
    return causal.to(where).eval(), tokenizer


def check_attends(causal: Any) -> None:
    """Only models that remember by keys and values: padding and a second suffix would mix into a recurrent state."""
    kinds = set(getattr(causal.config.get_text_config(), "layer_types", None) or ()) - ATTENDING
    if kinds or getattr(causal, "_is_stateful", False):
        raise InputError(
            f"{type(causal).__name__} has layers whose cache is more than keys and values "
            f"({', '.join(sorted(kinds)) or 'recurrent state'}); use a model whose layers all attend, such as Llama, "
            "Qwen3 or Gemma 3"
        )


def reason(error: Exception) -> str:
    """What a library says of a failure, on one line of bounded length."""
    text = " ".join(str(error).split())
    return (text if len(text) <= 300 else f"{text[:297]}...") or type(error).__name__


def fingerprint(causal: Any) -> str:
    """A short hash that tells one base model from another of the same shapes: its class and its first embeddings.

    Taken in bfloat16, so that it is the same in whatever precision the model is loaded.
    """
    rows = causal.get_input_embeddings().weight[:64].detach().cpu().to(torch.bfloat16).contiguous()
    digest = hashlib.sha256(type(causal).__name__.encode())
    digest.update(rows.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def is_base(causal: Any, source: str, known: str) -> bool:
    """Has the base model that was loaded from `source` the fingerprint `known`, in whatever precision it is?"""
    if fingerprint(causal) == known:
        return True
    if causal.dtype != torch.float16:
        return False
    # rounded to float16 first, weights round otherwise to bfloat16: those on the disk have to tell
    return fingerprint(load_backbone(source, dtype="bfloat16", device="cpu")[0]) == known


def _causal_names() -> set[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names: set[str] = set()
    for value in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        names |= {value} if isinstance(value, str) else set(value)
    return names


def quiet_transformers() -> None:
    """No progress bars or advice from below: the verbs have their own."""
    from transformers.utils import logging as hf_logging

    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    logging.getLogger("peft").setLevel(logging.ERROR)
    # PEFT 0.21 asks transformers 5.24 under a name that is going away; nothing a user could do about it
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing.*", category=FutureWarning)


def decoder(causal: Any) -> nn.Module:
    """The part of a causal LM below its LM head: ids to last-layer hidden states."""
    module = getattr(causal, causal.base_model_prefix, None)
    if not isinstance(module, nn.Module):
        raise InputError(f"{type(causal).__name__} has no decoder below its LM head; this architecture is unsupported")
    return module


def cached(module: nn.Module, cache: Any) -> dict[str, Any]:
    """The keyword under which this decoder takes a KV cache (`past_key_values` before transformers 5.24)."""
    name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    return {name: cache, "use_cache": True}


@contextmanager
def hidden_after(causal: Any, layer: int | None) -> Iterator[list[Tensor]]:
    """Collect the hidden states [B, L, H] after decoder layer `layer` (1 the first) of the passes inside the block.

    Nothing is collected for `None` and for the last layer: there the pass's own result is meant, after the final norm.
    Taken at the entrance of the next layer, where gradient checkpointing and sharding hand over whole states.
    """
    found: list[Tensor] = []
    layers = decoder_layers(causal)
    if layer is None or layer == len(layers):
        yield found
        return
    if not 0 < layer < len(layers):
        raise InputError(f"the model has {len(layers)} layers, so the head cannot read after layer {layer}")

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(args[0] if args else kwargs["hidden_states"])

    handle = layers[layer].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()


def decoder_layers(causal: Any) -> nn.ModuleList:
    """The decoder's layers, in order."""
    count = int(causal.config.get_text_config().num_hidden_layers)
    for module in decoder(causal).modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise InputError(f"{type(causal).__name__} has no list of {count} decoder layers; this architecture is unsupported")


def span_mean(hidden_BLH: Tensor, ends: Sequence[int], spans: Sequence[int]) -> Tensor:
    """Mean [B, H] over the `spans[i]` positions before `ends[i]`, in float32 (float64 stays so) where it is a mean."""
    if all(span == 1 for span in spans):
        rows = torch.arange(len(ends), device=hidden_BLH.device)
        return hidden_BLH[rows, torch.tensor(ends, device=hidden_BLH.device) - 1]
    return torch.stack(
        [_precise(row_LH[end - span : end]).mean(0) for row_LH, end, span in zip(hidden_BLH, ends, spans, strict=True)]
    )


def _precise(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def project(causal: Any, hidden_NH: Tensor) -> Tensor:
    """Hidden states [N, H] to logits [N, V] in float32 (float64 for a float64 model), as the model itself would.

    Applies the scalings that some architectures put between LM head and logits (Cohere, Granite, Gemma 2).
    """
    logits_NV = causal.get_output_embeddings()(hidden_NH)
    config = causal.config.get_text_config()
    if getattr(config, "logit_scale", None):
        logits_NV = logits_NV * config.logit_scale
    if getattr(config, "logits_scaling", None):
        logits_NV = logits_NV / config.logits_scaling
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        logits_NV = torch.tanh(logits_NV / cap) * cap
    logits_NV = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    return cast(Tensor, logits_NV)


def context_length(causal: Any) -> int:
    """Positions the model can take, prompt and answer together."""
    config = causal.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or 2**31)


def hidden_size(causal: Any) -> int:
    """Width H of the last hidden state."""
    return int(causal.config.get_text_config().hidden_size)
