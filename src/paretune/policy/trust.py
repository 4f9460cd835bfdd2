"""What a folder from a stranger is looked through for before anything in it is loaded.

A policy folder and that of a reward model hold JSON, text and safetensors. Nothing in them may run, lead out of the
folder, or make a reader take memory without a bound:

    links     none leads out of the folder
    pickles   files under names that libraries unpickle are refused, whatever they hold
    JSON      bounded in size and depth (`paretune.files.read_json`)
    tokens    no code of the tokenizer's own (`auto_map`)
    adapter   of LoRA; its configuration names no other model, code or file
    tensors   a safetensors header is bounded, and describes exactly the bytes that the file has

`check_folder` raises `InputError` for the first thing that is wrong. It reads no tensor and imports no model library.
"""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.files import check_depth, parse_json, read_json

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".h5", ".msgpack", ".py")
"""Ends of names of files that some library would unpickle or run. A policy folder has none of them."""
HEADER = 16 << 20
"""Bytes of a safetensors header; that of a model of a thousand layers has one."""
TENSORS = 100_000
AXES = 8
_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "F8_E4M3": 1,
    "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_FILES = 10_000
_OTHERS = ("auto_mapping", "corda_config", "eva_config", "loftq_config", "megatron_config", "arrow_config")
"""Fields of a PEFT adapter's configuration by which it would import a class or have initial weights made from files."""


def check_folder(folder: Path) -> None:
    """Raise `InputError` unless all files of the folder are of the kinds that may be loaded, each in its bounds."""
    root = folder.resolve()
    for number, path in enumerate(sorted(folder.rglob("*")), start=1):
        if number > _FILES:
            raise InputError(f"holds more than {_FILES} files; it is no folder that paretune wrote", file=folder)
        _check_place(path, root)
        if path.is_dir():
            continue
        if path.suffix.lower() in PICKLES:
            raise InputError(
                f"is a {path.suffix} file, which can run code where it is loaded; no policy needs it: remove it if you "
                "trust the rest of the folder",
                file=path,
            )
        if path.suffix == ".safetensors":
            check_safetensors(path)
        elif path.name in ("tokenizer_config.json", "config.json"):
            _check_tokenizer(path)
        elif path.name == "adapter_config.json":
            _check_adapter(path)
        elif path.suffix == ".json":
            read_json(path)


def _check_place(path: Path, root: Path) -> None:
    """A link may lead from one file of the folder to another, and nowhere else. Pipes and devices are no files."""
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        raise InputError(f"cannot be followed: {error.strerror or error}", file=path) from None
    if not real.is_relative_to(root):
        raise InputError("is a link that leads out of its folder; copy the folder with `cp -rL`", file=path)
    if path.is_symlink() and real.is_dir():
        raise InputError("is a link to a folder; copy the folder with `cp -rL`", file=path)
    if not (real.is_file() or real.is_dir()):
        raise InputError("is neither a file nor a folder", file=path)


def _object(path: Path) -> dict[str, Any]:
    data = read_json(path, unique=True)
    if not isinstance(data, dict):
        raise InputError("must be a JSON object", file=path)
    return data


def _check_tokenizer(path: Path) -> None:
    if _object(path).get("auto_map"):
        raise InputError(
            "names code of its own, which is not run; use a tokenizer of transformers itself",
            file=path,
            field="auto_map",
        )


def _check_adapter(path: Path) -> None:
    data = _object(path)
    if data.get("peft_type") != "LORA":
        raise InputError(f"must be LORA, found {data.get('peft_type')!r:.100}", file=path, field="peft_type")
    for key in _OTHERS:
        if data.get(key):
            raise InputError("would load more than an adapter; no policy needs it", file=path, field=key)
    if data.get("modules_to_save"):
        raise InputError("a policy's adapter has none", file=path, field="modules_to_save")
    if data.get("init_lora_weights", True) not in (True, False):
        raise InputError(
            f"must be true or false, found {data['init_lora_weights']!r:.100}", file=path, field="init_lora_weights"
        )


def check_safetensors(path: Path) -> None:
    """Raise `InputError` unless the header is bounded and its tensors are exactly the bytes that follow it.

    The format: 8 bytes of a length, little endian, a JSON object of that many bytes, the tensors' bytes.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else -1
        if not 0 < length <= min(HEADER, size - 8):
            limit = f"a header of {length} bytes" if length > 0 else "no header"
            raise InputError(
                f"has {limit}, and {size} bytes in all: it is no safetensors file, or a broken one", file=path
            )
        raw = file.read(length)
    header = parse_json(raw, path, unique=True)
    check_depth(header, path, 8)
    if not isinstance(header, dict):
        raise InputError("has a header that is no JSON object", file=path)
    header.pop("__metadata__", None)
    if len(header) > TENSORS:
        raise InputError(f"names {len(header)} tensors, at most {TENSORS} are read", file=path)
    spans = sorted(_span(name, each, path) for name, each in header.items())
    at = 0
    for low, high in spans:
        if low != at:
            raise InputError("has tensors that overlap, or bytes that belong to none", file=path)
        at = high
    if at != size - 8 - length:
        raise InputError(f"holds {size - 8 - length} bytes of tensors, but its header names {at}", file=path)


def _span(name: str, each: Any, path: Path) -> tuple[int, int]:
    """Where a tensor's bytes begin and end, checked against its shape and type."""
    try:
        kind, shape, (low, high) = each["dtype"], each["shape"], each["data_offsets"]
        numbers = [*shape, low, high]
        fine = len(shape) <= AXES and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)
        wanted = math.prod(shape) * _BYTES[kind] if fine else -1
    except (TypeError, KeyError, ValueError):
        fine, wanted, low, high = False, -1, 0, 0
    if not fine or high - low != wanted:
        raise InputError(f"describes the tensor {json.dumps(name)[:100]} by a type or shape that cannot be", file=path)
    return low, high
