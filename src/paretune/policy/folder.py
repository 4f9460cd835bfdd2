"""The policy folder: saved whole or not at all, loaded with every tensor checked, nothing executable in it.

policy.json           format version, method, base model, objectives, renderer, head, the tokenizer's fingerprint, data,
                      settings, versions, and a digest of each (see `paretune.policy.seal`)
adapter/              a plain PEFT adapter (safetensors)
adapters/NAME/        in its place several of them, where the method trains more than one (`paretune.policy.several`)
head.safetensors      the sensing head, where the method trains one
tokenizer files       with the chat template the policy was trained with
metrics.json          what training measured
train.jsonl           every logged step of the training
README.md             model card, written from the same numbers
.paretune             the mark by which an output folder is known as ours
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paretune.errors import InputError
from paretune.files import atomic_folder, dump_line, installed_version, read_described, write_json, write_text
from paretune.policy.adapters import adapter_fingerprint, attach_adapter, check_finite, save_adapter
from paretune.policy.backbone import choose_dtype, hidden_size, is_base, load_backbone, quiet_transformers, reason
from paretune.policy.head import FITTED, HeadConfig, SensingHead
from paretune.policy.policy import Policy
from paretune.policy.renderer import Renderer
from paretune.policy.seal import check_seal, seal
from paretune.policy.several import FOLDER, RULES, attach_parts, read_parts
from paretune.policy.tokenizer import check_tokenizer, check_vocabulary, tokenizer_fingerprint
from paretune.policy.trust import check_folder
from paretune.policy.weights import WeightMap
from paretune.pretrained import from_pretrained
from paretune.profile import Objective, check_names, check_profile
from paretune.rewards.encoder import locate_model

FORMAT = 1
_PACKAGES = ("paretune", "torch", "transformers", "peft")


def versions() -> dict[str, str]:
    """Versions of what made a policy."""
    return {name: installed_version(name) for name in _PACKAGES}


def save_policy(
    policy: Policy,
    folder: Path | str,
    *,
    metrics: Mapping[str, Any],
    overwrite: bool = False,
    journal: Path | None = None,
) -> None:
    """Write the policy folder, whole or not at all. `journal` (train.jsonl) is copied in when given."""
    with disk_errors(folder), atomic_folder(folder, overwrite=overwrite) as work:
        if policy.parts is not None:
            policy.parts.save(work)
        elif policy.peft is not None:
            save_adapter(policy.peft, work / "adapter")
        if policy.head is not None:
            save_tensors(policy.head, work / "head.safetensors")
        policy.tokenizer.save_pretrained(str(work))
        if journal is not None and journal.exists():
            (work / "train.jsonl").write_bytes(journal.read_bytes())
        write_json(work / "policy.json", _description(policy, work))
        write_json(work / "metrics.json", dict(metrics))
        write_text(work / "README.md", model_card(policy, metrics))


@contextmanager
def disk_errors(path: Path | str) -> Iterator[None]:
    """safetensors tells of a full disk by an error of its own; tell it as what it is."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        raise InputError(f"cannot be written: {reason(error)}", file=path) from error


def save_tensors(module: torch.nn.Module, path: Path, **metadata: str) -> None:
    """A module's parameters and buffers as safetensors.

    `metadata` stands in the file's header in place of the usual `format`. One entry at most: safetensors writes several
    in an order of chance, and the same tensors are to give the same bytes.
    """
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in module.state_dict().items()}
    save_file(tensors, str(path), metadata=metadata or {"format": "pt"})


def _description(policy: Policy, folder: Path) -> dict[str, Any]:
    described = {
        "format": FORMAT,
        "method": policy.method,
        "base_model": policy.base,
        "objectives": [objective.to_dict() for objective in policy.objectives],
        "renderer": policy.renderer.to_dict(),
        "tokenizer": tokenizer_fingerprint(policy.tokenizer, folder),
        "head": policy.head.config.to_dict() if policy.head is not None else None,
        "adapter": policy.peft is not None,
        **({"weights": policy.weight_map.to_dict()} if policy.weight_map is not None else {}),
        "versions": versions(),
        **{key: value for key, value in policy.metadata.items() if key != "adapter"},
    }
    if policy.parts is not None:
        described |= {"parts": policy.parts.to_list(), "adapter_config": policy.parts.fingerprints(folder)}
    elif policy.peft is not None:
        described["adapter_config"] = adapter_fingerprint(folder / "adapter")
    return described | {"digest": seal(described)}


def load_policy(
    folder: Path | str, *, base: str | None = None, dtype: str | None = None, device: str | None = None
) -> Policy:
    """Load a policy folder. `base` overrides where the base model lies, `dtype` the precision it was trained in.

    Raises `InputError` when it is no policy folder, when the base model cannot be had, or when head, objectives and
    adapter do not belong together: nothing is ever silently re-initialised.
    """
    described, objectives, shape = _read_description(folder)
    folder = Path(folder)
    source = base or described["base_model"]
    causal = load_base(folder, source, dtype or described.get("dtype", "auto"), device, described)
    tokenizer = load_tokenizer(folder)
    with told_as(folder / "policy.json"):
        renderer = Renderer(tokenizer, objectives, **_renderer_settings(described))
        names = [each.name for each in objectives]
        weight_map = WeightMap.from_dict(described["weights"], names) if "weights" in described else None
        rule = weight_map.rule if weight_map is not None else None
        several = "parts" in described or rule in RULES
        described_parts = read_parts(described.get("parts"), rule, names) if several else None
    check_tokenizer(tokenizer, described, folder / "policy.json")
    with told_as(folder / "tokenizer.json"):
        check_vocabulary(renderer, causal, source)
    peft, parts = None, None
    if weight_map is not None and described_parts is not None:
        saved = described.get("adapter_config")
        parts = attach_parts(causal, folder, source, saved, described_parts, weight_map.rule)
        peft = parts.peft
    elif described["adapter"]:
        peft = attach_adapter(causal, folder / "adapter", source, described.get("adapter_config"))
    head = _load_head(folder, shape, hidden_size(causal), names)
    known = {
        "format",
        "method",
        "base_model",
        "objectives",
        "renderer",
        "tokenizer",
        "head",
        "adapter_config",
        "weights",
        "parts",
        "digest",
    }
    return Policy(
        causal=peft.get_base_model() if peft is not None else causal,
        tokenizer=tokenizer,
        renderer=renderer,
        objectives=objectives,
        method=described["method"],
        base=source,
        head=head.to(causal.device).eval() if head is not None else None,
        peft=peft,
        metadata={key: value for key, value in described.items() if key not in known},
        weight_map=weight_map,
        parts=parts,
    )


def read_objectives(folder: Path | str) -> list[Objective]:
    """The objectives of a policy folder, without loading its model. Raises `InputError` as `load_policy` does."""
    return _read_description(folder)[1]


def read_renderer(folder: Path | str) -> tuple[Renderer, Any]:
    """The renderer of a policy folder and the config of its base model, without loading a model.

    Raises `InputError` as `load_policy` does.
    """
    from transformers import AutoConfig

    described, objectives, _ = _read_description(folder)
    folder, source = Path(folder), described["base_model"]
    tokenizer = load_tokenizer(folder)
    with told_as(folder / "policy.json"):
        renderer = Renderer(tokenizer, objectives, **_renderer_settings(described))
    quiet_transformers()
    try:
        config = from_pretrained(AutoConfig, locate_model(source))
    except Exception as error:  # transformers and huggingface_hub each raise kinds of their own
        said = error.message if isinstance(error, InputError) else reason(error)
        raise InputError(f"the config of its base model '{source}' cannot be read: {said}", file=folder) from None
    return renderer, config


def _read_description(folder: Path | str) -> tuple[dict[str, Any], list[Objective], HeadConfig | None]:
    """policy.json, checked, with the objectives and the head's shape that it describes."""
    if not isinstance(folder, (str, Path)):
        raise InputError(f"a policy is a folder, found {folder!r:.100}")
    path = Path(folder) / "policy.json"
    if not path.parent.is_dir():
        raise InputError("no such policy folder", file=folder)
    if not path.is_file():
        raise InputError("is no policy folder (it has no policy.json)", file=folder)
    check_folder(path.parent)
    described = _checked_description(path)
    with told_as(path):
        objectives = _objectives(described)
        shape = HeadConfig.from_dict(described["head"]) if described.get("head") is not None else None
    check_seal(described, path)
    return described, objectives, shape


def _checked_description(path: Path) -> dict[str, Any]:
    data = read_described(path, FORMAT)
    kinds = {"method": str, "base_model": str, "objectives": list, "renderer": dict, "adapter": bool}
    wrong = [(key, kind) for key, kind in kinds.items() if not isinstance(data.get(key), kind)]
    # what older versions did not write, or not for every method
    optional = {"dtype": str, "base_fingerprint": str, "data": dict, "config": dict, "train_prompts": list}
    wrong += [(key, kind) for key, kind in optional.items() if key in data and not isinstance(data[key], kind)]
    for key, kind in wrong:
        raise InputError(f"must be a {kind.__name__}, found {data.get(key)!r:.100}", file=path, field=key)
    if not all(isinstance(each, str) for each in data.get("train_prompts", [])):
        raise InputError("must be a list of the keys of prompts", file=path, field="train_prompts")
    wanted = {"adapter": data["adapter"] and "parts" not in data, FOLDER: "parts" in data}
    for name, there in wanted.items():
        if not there and (path.parent / name).exists():
            raise InputError(f"says there is no {name}, but the folder has one", file=path, field="adapter")
    return data


@contextmanager
def told_as(path: Path) -> Iterator[None]:
    """Whatever is wrong with a value of policy.json is an `InputError` that names the file."""
    try:
        yield
    except InputError as error:
        raise InputError(error.message, file=path, field=error.field) from None
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise InputError(f"holds a value of the wrong type: {reason(error)}", file=path) from None


def _objectives(described: Mapping[str, Any]) -> list[Objective]:
    objectives = [Objective.from_dict(each) for each in described["objectives"]]
    if objectives or described.get("head") is not None:  # sft and dpo also train on rows without scores
        check_names(objectives)
    if "mean_profile" in described:
        check_profile(described["mean_profile"], [each.name for each in objectives], partial=False, what="mean_profile")
    return objectives


def load_base(
    folder: Path,
    source: str,
    dtype: str,
    device: str | None,
    described: Mapping[str, Any],
    *,
    elsewhere: str = "--base (base= in Python)",
) -> Any:
    """The base model, which must be the one of training. `elsewhere` is how the user says that it lies elsewhere."""
    choose_dtype(dtype, torch.device("cpu"))  # a precision that does not exist is not the base model's fault
    try:
        causal, _ = load_backbone(source, dtype=dtype, device=device)
    except InputError as error:
        raise InputError(
            f"its base model '{source}' {error.message}; say where it is with {elsewhere}", file=folder
        ) from None
    known = described.get("base_fingerprint")
    if known is not None and not is_base(causal, source, known):
        raise InputError(f"was trained on another base model than the one at '{source}'", file=folder)
    return causal


def _renderer_settings(described: Mapping[str, Any]) -> dict[str, Any]:
    settings = dict(described["renderer"])
    for key in settings:
        if key not in ("style", "snap", "centre", "spread"):
            raise InputError(f"unknown key '{key}'", field="renderer")
    return settings


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer whose files lie in the folder."""
    from transformers import AutoTokenizer

    try:
        return from_pretrained(AutoTokenizer, str(folder))
    except Exception as error:
        raise InputError(f"its tokenizer cannot be loaded: {reason(error)}", file=folder) from error


def _load_head(folder: Path, shape: HeadConfig | None, hidden: int, names: Sequence[str]) -> SensingHead | None:
    path = folder / "head.safetensors"
    if shape is None:
        if path.exists():
            raise InputError("lies in a folder whose policy.json has no head", file=path)
        return None
    if not path.is_file():
        raise InputError("is missing, though policy.json describes a head", file=path)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(str(path))
        check_finite(tensors, path)
        stored = tensors["target_mean"].numel() if "target_mean" in tensors else len(names)
        if stored != len(names):
            raise InputError(
                f"senses {stored} objective(s), but policy.json names {len(names)}: {', '.join(names)}", file=path
            )
        head = _empty_head(hidden, len(names), shape, tensors)
        if not any(name in tensors for name in FITTED):  # saved before intervals existed: they are not calibrated
            tensors |= {name: head.state_dict()[name] for name in FITTED}
        head.load_state_dict(tensors, strict=True)
        _check_fitted(head, path)
    except (SafetensorError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise InputError(
            f"does not belong to {len(names)} objective(s), a {shape.kind} head and hidden size {hidden}: {text[:300]}",
            file=path,
        ) from error
    return head


def _empty_head(hidden: int, count: int, shape: HeadConfig, tensors: Mapping[str, torch.Tensor]) -> SensingHead:
    """A head to fill with `tensors`. One that they do not fit is never made: it could be of any size."""
    with torch.device("meta"):
        wanted = {name: each.shape for name, each in SensingHead(hidden, count, shape).state_dict().items()}
    for name, each in tensors.items():
        if name in wanted and each.shape != wanted[name]:
            raise RuntimeError(f"size mismatch for {name}: {list(each.shape)} in place of {list(wanted[name])}")
    missing = [name for name in wanted if name not in tensors and name not in FITTED]
    if missing:
        raise RuntimeError(f"Missing key(s): {', '.join(missing)}")
    return SensingHead(hidden, count, shape)


def _check_fitted(head: SensingHead, path: Path) -> None:
    """What fitting stored lies where fitting can have put it: else profiles and intervals would be wrong or NaN."""
    means, table = head.target_mean, head.conformal
    possible = {
        "target_mean": bool(((means >= 0) & (means <= 1)).all()),
        "target_std": bool((head.target_std > 0).all()),
        "conformal": bool((table >= 0).all() and (table.diff(dim=0) >= 0).all()),
        "residual_cov": bool(torch.linalg.cholesky_ex(head.residual_cov).info == 0),
        "input_std": not head.config.standardise_input or bool((head.input_std > 0).all()),
    }
    for name, fine in possible.items():
        if not fine:
            raise InputError(f"tensor '{name}' holds values that fitting a head cannot give", file=path)


def model_card(policy: Policy, metrics: Mapping[str, Any]) -> str:
    """README.md of a policy folder, from what policy.json and metrics.json hold."""
    lines = [
        "---",
        "library_name: paretune",
        f"base_model: {dump_line(policy.base)}",  # which is YAML too, whatever the folder's name
        "tags: [paretune, multi-objective, self-guided-alignment]",
        "---",
        "",
        f"# A paretune policy (method `{policy.method}`)",
        "",
        f"Base model: `{policy.base}`. Objectives:",
        "",
        "| objective | direction | reward | scale |",
        "|---|---|---|---|",
    ]
    for each in policy.objectives:
        kind = each.scale.kind if each.scale else "none"
        lines.append(f"| {each.name} | {each.direction} | `{each.spec or 'with the data'}` | {kind} |")
    lines += ["", "## What training measured", "", "| figure | value |", "|---|---|"]
    lines += [f"| {key} | {_short(value)} |" for key, value in metrics.items() if isinstance(value, (int, float, str))]
    lines += [
        "",
        "## Use",
        "",
        "```python",
        "import paretune",
        'policy = paretune.load_policy("this/folder")',
        'print(policy.generate(["Tell me a joke."])[0].text)',
        "```",
        "",
    ]
    return "\n".join(lines)


def _short(value: float | int | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
