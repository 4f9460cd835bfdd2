"""The folder of a reward model: saved whole or not at all, loaded with every tensor checked, nothing executable in it.

reward.json           format version, base model, objectives with direction and unit, head, the tokenizer's fingerprint,
                      data, settings, versions, and a digest of each (see `paretune.policy.seal`)
adapter/              a plain PEFT adapter (safetensors)
head.safetensors      the reward head; its header names the objectives it was trained for
tokenizer files       with the chat template it was trained with
metrics.json          what validation measured, with intervals
train.jsonl           every logged step of the training
README.md             model card, written from the same numbers
.paretune             the mark by which an output folder is known as ours
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from paretune.errors import InputError
from paretune.files import atomic_folder, write_json, write_text
from paretune.policy.adapters import adapter_fingerprint, attach_adapter, check_finite, save_adapter
from paretune.policy.backbone import hidden_size
from paretune.policy.folder import disk_errors, load_base, load_tokenizer, save_tensors, told_as, versions
from paretune.policy.renderer import Renderer
from paretune.policy.seal import check_seal, seal
from paretune.policy.tokenizer import check_tokenizer, check_vocabulary, tokenizer_fingerprint
from paretune.policy.trust import check_folder
from paretune.profile import Objective
from paretune.reward_model.card import model_card
from paretune.reward_model.config import RewardHeadConfig
from paretune.reward_model.description import DESCRIPTION, FORMAT, IN_WORDS, read_description, read_outputs
from paretune.reward_model.head import RewardHead
from paretune.reward_model.model import RewardModel
from paretune.reward_model.module import RewardModule
from paretune.training.config import build


def save_reward_model(
    model: RewardModel,
    folder: Path | str,
    *,
    metrics: Mapping[str, Any],
    overwrite: bool = False,
    journal: Path | None = None,
) -> None:
    """Write the folder, whole or not at all. `journal` (train.jsonl) is copied in when given."""
    head = model.module.head
    with disk_errors(folder), atomic_folder(folder, overwrite=overwrite) as work:
        save_adapter(model.module.peft, work / "adapter")
        outputs = _outputs(model.objectives, head.units, head.levels)
        save_tensors(head, work / "head.safetensors", outputs=json.dumps(outputs))
        model.tokenizer.save_pretrained(str(work))
        if journal is not None:
            (work / "train.jsonl").write_bytes(journal.read_bytes())
        write_json(work / DESCRIPTION, _description(model, outputs, work))
        write_json(work / "metrics.json", dict(metrics))
        write_text(work / "README.md", model_card(model, metrics))


def _outputs(objectives: Sequence[Objective], units: Sequence[str], levels: Sequence[Sequence[float]]) -> list[Any]:
    """What each output is, as it stands in reward.json and in the head's header."""
    return [
        {"name": each.name, "direction": each.direction, "unit": unit, "unit_in_words": IN_WORDS[unit]}
        | ({"levels": list(known)} if known else {})
        for each, unit, known in zip(objectives, units, levels, strict=True)
    ]


def _description(model: RewardModel, outputs: list[Any], folder: Path) -> dict[str, Any]:
    head = model.module.head.config
    described = {
        "format": FORMAT,
        "base_model": model.base,
        "objectives": outputs,
        "head": {"depth": head.depth, "width": head.width, "dropout": head.dropout},
        "tokenizer": tokenizer_fingerprint(model.tokenizer, folder),
        "adapter_config": adapter_fingerprint(folder / "adapter"),
        "versions": versions(),
        **model.metadata,
    }
    return described | {"digest": seal(described)}


def load_reward_model(
    folder: Path | str, *, base: str | None = None, dtype: str | None = None, device: str | None = None
) -> RewardModel:
    """Load the folder of a reward model. `base` overrides where the base model lies, `dtype` the precision of training.

    Raises `InputError` when it is no such folder, when the base model cannot be had or is another one, or when head,
    objectives, adapter and tokenizer do not belong together: nothing is ever silently re-initialised.
    """
    folder = Path(folder)
    described = read_description(folder)
    check_folder(folder)
    check_seal(described, folder / DESCRIPTION)
    with told_as(folder / DESCRIPTION):
        objectives, units, levels = read_outputs(described)
        shape = build(RewardHeadConfig, described["head"], above="head.")
    source = base or described["base_model"]
    precision, spec = dtype or described.get("dtype", "auto"), "trained:FOLDER?base=MODEL (base= in Python)"
    causal = load_base(folder, source, precision, device, described, elsewhere=spec)
    tokenizer = load_tokenizer(folder)
    with told_as(folder / DESCRIPTION):
        renderer = Renderer(tokenizer, [])
    check_tokenizer(tokenizer, described, folder / DESCRIPTION)
    with told_as(folder / "tokenizer.json"):
        check_vocabulary(renderer, causal, source)
    head = RewardHead(hidden_size(causal), units, levels, shape)
    _fill(head, folder / "head.safetensors", _outputs(objectives, units, levels))
    peft = attach_adapter(causal, folder / "adapter", source, described.get("adapter_config"))
    module = RewardModule(peft, head.to(causal.device)).eval()
    known = {"format", "base_model", "objectives", "head", "tokenizer", "versions", "digest", "adapter_config"}
    metadata = {key: value for key, value in described.items() if key not in known}
    return RewardModel(module, tokenizer, renderer, objectives, source, metadata)


def _fill(head: RewardHead, path: Path, outputs: list[Any]) -> None:
    """Load the head's tensors, which must be those of exactly these outputs."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"is missing, though {DESCRIPTION} describes a head", file=path)
    try:
        with safe_open(str(path), framework="pt") as file:
            stored = (file.metadata() or {}).get("outputs")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        check_finite(tensors, path)
        _check_outputs(stored, outputs, path)
        head.load_state_dict(tensors, strict=True)
    except (SafetensorError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise InputError(f"does not belong to this {DESCRIPTION}: {text[:300]}", file=path) from error
    if not bool((head.rating_std > 0).all()):
        raise InputError("tensor 'rating_std' holds values that fitting cannot give", file=path)


def _check_outputs(stored: str | None, outputs: list[Any], path: Path) -> None:
    """The header's outputs are those of reward.json: names, order, directions, units, levels."""
    try:
        found = json.loads(stored or "")
        names = [each["name"] for each in found]
    except (ValueError, TypeError, KeyError):
        raise InputError("has no list of the outputs it was trained for in its header", file=path) from None
    if found != outputs:
        said = [each["name"] for each in outputs]
        what = f"measures {', '.join(names)}" if names != said else "was trained with other directions, units or levels"
        raise InputError(f"{what}, but {DESCRIPTION} says {', '.join(said)}; restore the folder", file=path)


def load_for_scoring(folder: Path | str, base: str | None = None) -> RewardModel:
    """As rewards load models: float32 on a CPU, the precision of training on a GPU."""
    return load_reward_model(folder, base=base, dtype=None if torch.cuda.is_available() else "float32")
