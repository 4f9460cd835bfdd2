"""Export folders: what `paretune export` writes, whole or not at all, each with a file that says where it came from.

merged   a plain transformers folder: config, safetensors, tokenizer, chat template, generation config
vllm     model/ (such a folder) or adapter/ (a plain PEFT adapter), and sensor/ (the head for vLLM's pooling engine)
         where it can be one

Both hold `paretune.json` (provenance) and `README.md` (how to run it).
"""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from paretune.errors import InputError, did_you_mean
from paretune.files import atomic_folder, check_target_folder, dump_line, file_digest, read_json, write_json, write_text
from paretune.policy.backbone import decoder_layers
from paretune.policy.export.merged import merge, save_merged
from paretune.policy.export.sensor import save_sensor, why_no_sensor
from paretune.policy.folder import disk_errors, load_policy, read_objectives, versions
from paretune.policy.policy import Policy
from paretune.policy.seal import digest
from paretune.policy.weights import check_weights

Target = Literal["merged", "vllm"]
TARGETS: tuple[Target, ...] = get_args(Target)
PROVENANCE = "paretune.json"
FORMAT = 1
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM 0.34 takes for --max-lora-rank."""


@dataclass(frozen=True)
class Exported:
    """What was written: the folder, the model or adapter in it, and the head's folder or why there is none.

    `sensor` and `why` are both `None` for a policy without a head, and where the head is not asked for (`merged`).
    """

    folder: Path
    to: Target
    model: Path
    sensor: Path | None = None
    why: str | None = None


def check_export(source: Path | str, out: Path | str, to: str, *, adapter: bool, overwrite: bool) -> Target:
    """All that can be told of an export without loading a model; gives the target. Raises `InputError`."""
    if to not in TARGETS:
        raise InputError(f"export to one of {', '.join(TARGETS)}, not to '{to}'.{did_you_mean(to, TARGETS)}")
    if adapter and to != "vllm":
        raise InputError("an adapter is exported for vllm only: --to vllm --adapter")
    read_objectives(source)
    inside = Path(out).resolve()
    if Path(source).resolve() in (inside, *inside.parents):
        raise InputError("lies in the policy's own folder; write the export elsewhere", file=out)
    check_target_folder(out, overwrite=overwrite)
    return next(each for each in TARGETS if each == to)


def export_policy(
    source: Path | str,
    out: Path | str,
    *,
    to: str = "merged",
    weights: Mapping[str, float] | None = None,
    adapter: bool = False,
    base: str | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the policy folder `source` to the folder `out` for other software (see the top of this file).

    A policy of several adapters is one model for some `weights` only. `adapter` leaves the base model as it is and
    writes the adapter beside it. `dtype` is the precision in which weights are merged and saved; `base` is where the
    base model lies. Raises `InputError` as `load_policy` does, for what the target cannot express, and for an output
    that is there.
    """
    target = check_export(source, out, to, adapter=adapter, overwrite=overwrite)
    if weights is not None:
        weights = check_weights(weights, [each.name for each in read_objectives(source)])
    origin = policy_print(source)
    policy = load_policy(source, base=base, dtype=dtype, device="cpu")
    shared = _shared(policy)
    rank = _adapter_rank(policy) if adapter else None
    policy = merge(policy, weights)
    with disk_errors(out), atomic_folder(out, overwrite=overwrite) as work:
        place = work if target == "merged" else work / ("adapter" if adapter else "model")
        if adapter:
            _copy_adapter(Path(source), place, policy)
        else:
            save_merged(policy, place)
        head = _add_sensor(policy, work / "sensor") if target == "vllm" else {}
        about = {
            "format": FORMAT,
            "to": target,
            "policy": origin,
            **shared,
            "weights": weights,
            **({"lora_rank": rank} if rank is not None else {}),
            "dtype": str(policy.causal.dtype).removeprefix("torch."),
            "versions": versions(),
            **head,
        }
        write_json(work / PROVENANCE, about)
        write_text(work / "README.md", _readme(policy, target, adapter, about))
    folder = Path(out)
    return Exported(
        folder,
        target,
        folder / place.relative_to(work),
        folder / "sensor" if head.get("sensor") else None,
        head.get("why_no_sensor"),
    )


def policy_print(folder: Path | str) -> str:
    """A digest of a policy folder: of its description's seal, its adapters and its head."""
    folder = Path(folder)
    files = sorted([*folder.glob("adapter*/**/*.safetensors"), *folder.glob("head.safetensors")])
    seal = read_json(folder / "policy.json").get("digest")
    return digest([seal, {str(each.relative_to(folder)): file_digest(each) for each in files}])


def _shared(policy: Policy) -> dict[str, Any]:
    """What is worth knowing of a policy where its folder is not at hand."""
    return {
        "method": policy.method,
        "base_model": policy.base,
        "objectives": [each.to_dict() for each in policy.objectives],
        "renderer": policy.renderer.to_dict(),
        "head": policy.head.config.to_dict() if policy.head is not None else None,
    }


def _add_sensor(policy: Policy, folder: Path) -> dict[str, Any]:
    if policy.head is None:
        return {"sensor": None}
    why = why_no_sensor(policy.head, len(decoder_layers(policy.causal)))
    return {"sensor": None, "why_no_sensor": why} if why else {"sensor": save_sensor(policy, folder)}


def _adapter_rank(policy: Policy) -> int:
    """The rank of the one adapter. Raises `InputError` for what is no plain LoRA adapter that vLLM serves."""
    if policy.parts is not None or policy.peft is None:
        count = len(policy.parts) if policy.parts is not None else 0
        raise InputError(
            f"a policy trained by '{policy.method}' has {count or 'no'} adapters, not one; leave --adapter"
        )
    config = policy.peft.peft_config["default"]
    odd = [
        name
        for name, there in {
            "biases": getattr(config, "bias", "none") != "none",
            "DoRA": getattr(config, "use_dora", False),
            "whole modules": bool(getattr(config, "modules_to_save", None)),
        }.items()
        if there
    ]
    if odd:
        raise InputError(f"the adapter trains {' and '.join(odd)}, which vLLM does not serve; leave --adapter")
    rank = max([config.r, *(getattr(config, "rank_pattern", None) or {}).values()])
    if rank > LORA_RANKS[-1]:
        raise InputError(f"the adapter's rank is {rank}, and vLLM serves {LORA_RANKS[-1]} at most; leave --adapter")
    return int(rank)


def _copy_adapter(source: Path, folder: Path, policy: Policy) -> None:
    folder.mkdir()
    shutil.copyfile(source / "adapter" / "adapter_model.safetensors", folder / "adapter_model.safetensors")
    write_json(
        folder / "adapter_config.json",
        read_json(source / "adapter" / "adapter_config.json") | {"base_model_name_or_path": policy.base},
    )
    policy.tokenizer.save_pretrained(str(folder))


def _readme(policy: Policy, to: Target, adapter: bool, about: Mapping[str, Any]) -> str:
    """README.md: what this is, and how it is run and asked."""
    asked = policy.renderer.profile_text(policy.mean_profile if policy.takes_profile else None).strip()
    lines = [
        "---",
        "library_name: transformers",
        f"base_model: {dump_line(policy.base)}",  # which is YAML too, whatever the folder's name
        "tags: [paretune, multi-objective]",
        "---",
        "",
        f"# A policy trained by paretune's `{policy.method}`",
        "",
        f"Objectives: {', '.join(policy.names) or 'none'}. `{PROVENANCE}` says what it was exported from.",
        "",
    ]
    if asked:
        lines += [
            "It is asked for a profile by a line at the end of the last user message:",
            "",
            textwrap.indent(asked, "    "),  # phrases are anybody's words, and could end a fence
            "",
        ]
    if to == "merged":
        return "\n".join(
            [*lines, "It is a plain transformers model; `AutoModelForCausalLM.from_pretrained` loads it.", ""]
        )
    return "\n".join([*lines, *_run_vllm(policy, adapter, about)])


def _run_vllm(policy: Policy, adapter: bool, about: Mapping[str, Any]) -> list[str]:
    """The commands that serve it."""
    if adapter:
        rank = next(each for each in LORA_RANKS if each >= about["lora_rank"])
        serve = f"vllm serve {shlex.quote(policy.base)} --tokenizer adapter --enable-lora --max-lora-rank {rank}"
        serve += " --lora-modules policy=adapter"
    else:
        serve = "vllm serve model"
    lines = ["```", serve, "```", ""]
    if about.get("sensor"):
        convert = about["sensor"]["form"]
        lines += [
            "The sensing head takes the prompt up to the end of the last user message, as token ids",
            f"(`Renderer.prefix`). Its outputs are {about['sensor']['outputs']}.",
            "",
            "```",
            f"vllm serve sensor --runner pooling --convert {convert}",
            "```",
            "",
        ]
    elif about.get("why_no_sensor"):
        lines += [f"There is no sensor beside it: {about['why_no_sensor']}.", ""]
    return lines
