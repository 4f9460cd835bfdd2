"""Adapters on disk: saved as PEFT saves them, loaded with every tensor checked. For policies and reward models alike.

`model` is the causal LM for a first adapter, and the PEFT model for one more beside those that it has.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from paretune.errors import InputError
from paretune.files import read_json, write_json
from paretune.policy.backbone import reason
from paretune.policy.seal import digest


def save_adapter(peft: Any, folder: Path, *, name: str = "default") -> None:
    """The adapter as PEFT saves it, without its card; what PEFT keeps as a set is sorted, for the same bytes.

    `name` is the adapter's in the PEFT model.
    """
    peft.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False, selected_adapters=[name])
    (folder / "README.md").unlink(missing_ok=True)
    if name != "default":  # PEFT puts any other into a folder of its own below
        for file in (folder / name).iterdir():
            file.rename(folder / file.name)
        (folder / name).rmdir()
    config = read_json(folder / "adapter_config.json")
    for key in ("target_modules", "exclude_modules", "modules_to_save"):
        if isinstance(config.get(key), list):
            config[key].sort()
    write_json(folder / "adapter_config.json", config)


def adapter_fingerprint(folder: Path) -> str:
    """A digest of a folder's adapter_config.json, less what may change: where the base model is, and who wrote it.

    Another lora_alpha fits the same tensors, and would weigh them otherwise without a word.
    """
    config = read_json(folder / "adapter_config.json")
    if not isinstance(config, dict):
        raise InputError("must be a JSON object", file=folder / "adapter_config.json")
    free = ("base_model_name_or_path", "revision", "peft_version", "auto_mapping", "inference_mode")
    return digest({key: value for key, value in config.items() if key not in free})


def attach_adapter(model: Any, folder: Path, source: str, saved: Any, *, name: str = "default") -> Any:
    """The PEFT model with the folder's adapter, every tensor of it there and finite, configured as it was saved.

    `source` names the base model in messages; `saved` is the fingerprint of the adapter's configuration, `None` in
    folders of versions that kept none.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    from paretune.policy.lora import use_fused_lora  # with PEFT, which takes seconds to import

    weights = folder / "adapter_model.safetensors"
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        if not (folder / file).is_file():  # PEFT would go and ask a hub for it
            raise InputError(f"has no {file}", file=folder)
    if saved is not None and saved != adapter_fingerprint(folder):
        raise InputError(
            "is not what it was when the folder was saved: restore it, or copy the whole folder anew",
            file=folder / "adapter_config.json",
        )
    try:
        with safe_open(str(weights), framework="pt") as opened, warnings.catch_warnings():
            stored = set(opened.keys())
            warnings.simplefilter("ignore")  # PEFT only warns of missing tensors; they are an error below
            # in the backbone's precision, as it was trained
            if isinstance(model, PeftModel):
                model.load_adapter(str(folder), adapter_name=name, autocast_adapter_dtype=False)
                peft = model.eval()
            else:
                peft = PeftModel.from_pretrained(
                    model, str(folder), adapter_name=name, autocast_adapter_dtype=False
                ).eval()
            use_fused_lora(peft)  # as it computed in training
    except Exception as error:
        raise InputError(f"does not fit the base model '{source}': {reason(error)}", file=folder) from error
    tensors = get_peft_model_state_dict(peft, adapter_name=name, save_embedding_layers=False)
    check_finite(tensors, weights)
    wanted = set(tensors)
    if stored != wanted:
        raise InputError(
            f"does not fit the base model '{source}': {len(wanted - stored)} tensors are missing and "
            f"{len(stored - wanted)} unknown, such as {min(stored ^ wanted)}",
            file=weights,
        )
    return peft


def check_finite(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """No NaN and no infinity in loaded tensors."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise InputError(f"tensor '{name}' holds NaN or infinity", file=path)
