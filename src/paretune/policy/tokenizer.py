"""The tokenizer of a saved policy or reward model: it must give the ids of training, and ids the base model has.

A saved folder keeps its own tokenizer files. Edited, replaced or read differently, they would go on without a word and
feed the model other tokens than it learnt; so policy.json and reward.json hold a fingerprint of what the tokenizer did
when it was saved, in parts, that an error can name the part.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paretune.errors import InputError
from paretune.files import read_json
from paretune.policy.renderer import Renderer
from paretune.policy.seal import digest

PROBE = (
    "Why is the sky blue? It's 42.5 % (café, naïve, Größe); 'quoted' \"text\"\n\n\tfor i in range(10): x += 1\n"
    "<brevity_score:0.25> Привет, 世界, مرحبا 🙂 https://example.org/a_b?c=d"
)
PARTS = {
    "size": ("the size of its vocabulary", "tokenizer.json"),
    "ids": ("the token ids of a text", "tokenizer.json"),
    "special": ("its special and added tokens", "tokenizer_config.json"),
    "template": ("its chat template", "chat_template.jinja"),
    "model": ("its vocabulary, merges or the steps around them", "tokenizer.json"),
}
"""Parts of a fingerprint: what each says of the tokenizer, and the file that it comes from."""
SINCE_1 = ("size", "ids", "special", "template")
"""The parts that every fingerprint has."""
STEPS = ("model", "normalizer", "pre_tokenizer", "post_processor", "decoder")


def tokenizer_fingerprint(tokenizer: Any, folder: Path | None = None) -> dict[str, Any]:
    """What a tokenizer does, in the parts of `PARTS`; `model` where the folder is given that it was saved to.

    `model` is all that tokenizer.json makes of a text: no text that is tried out can show every merge at work.
    """
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    added = {str(key): str(token) for key, token in sorted(tokenizer.added_tokens_decoder.items())}
    found = {
        "size": len(tokenizer),
        "ids": digest(tokenizer(PROBE, add_special_tokens=False)["input_ids"]),
        "special": digest([[getattr(tokenizer, name) for name in names], added]),
        "template": digest(tokenizer.chat_template),
    }
    if folder is not None and (folder / "tokenizer.json").is_file():
        # of the file, not of the object: another version of tokenizers may write the same thing in another way
        data = read_json(folder / "tokenizer.json")
        found["model"] = digest([data.get(step) for step in STEPS])
    return found


def check_tokenizer(tokenizer: Any, described: Mapping[str, Any], description: Path) -> None:
    """The tokenizer beside the description (policy.json, say) is the one that was saved. Without a fingerprint, as
    folders of old versions are, it passes.

    Raises `InputError` that names the part that differs and its file.
    """
    saved = described.get("tokenizer")
    if saved is None:
        return
    if not isinstance(saved, Mapping) or not set(SINCE_1) <= set(saved) <= set(PARTS):
        raise InputError(f"must hold {', '.join(SINCE_1)}", file=description, field="tokenizer")
    found = tokenizer_fingerprint(tokenizer, description.parent)
    for part, (what, file) in PARTS.items():
        if part in saved and found.get(part) != saved[part]:
            here = f" (was {saved[part]}, is {found[part]})" if part == "size" else ""
            raise InputError(
                f"{what} changed since the folder was saved{here}: the folder's tokenizer files were edited, or are "
                f"read differently by this version of transformers (saved with {_version(described)}); restore them, "
                "or copy the whole folder anew",
                file=description.with_name(file),
            )


def _version(described: Mapping[str, Any]) -> str:
    versions = described.get("versions")
    return str(versions.get("transformers", "unknown")) if isinstance(versions, Mapping) else "unknown"


def check_vocabulary(renderer: Renderer, causal: Any, source: str) -> None:
    """Every id that the tokenizer and the chat template produce has a row in the model's embedding.

    Added tokens that no template uses may lie beyond it: Gemma 3 has such a one for images.
    """
    tokenizer, rows = renderer.tokenizer, int(causal.get_input_embeddings().weight.shape[0])
    chat = [{"role": "user", "content": "a"}]
    used = {*renderer.prefix(chat), *renderer.suffix(chat, None), renderer.end_of_turn, tokenizer.pad_token_id}
    highest = max(tokenizer.vocab_size - 1, *used)
    if highest >= rows:
        raise InputError(
            f"the tokenizer gives ids up to {highest}, but the model at '{source}' has {rows} embeddings: they do not "
            "belong together; use the tokenizer of that model"
        )
