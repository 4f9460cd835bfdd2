"""Tiny sequence classifiers and encoders, made by script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_models import SENTENCES, tiny_config, tiny_tokenizer

LABELS = ("gloomy", "neutral", "cheerful")


def word_tokenizer(folder: Path) -> int:
    """A WordLevel tokenizer with BERT's special tokens; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    found = sorted({word for text in SENTENCES for word in text.lower().replace(".", " ").split()})
    raw = Tokenizer(models.WordLevel({word: at for at, word in enumerate(special + found)}, unk_token="[UNK]"))
    raw.normalizer = normalizers.Lowercase()
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=32,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


def bert_config(vocabulary: int, **options: Any) -> Any:
    from transformers import BertConfig

    return BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.3,
        pad_token_id=0,
        **options,
    )


def make_bert(folder: Path, auto: str = "AutoModelForSequenceClassification", **options: Any) -> Path:
    """A BERT with random weights and a word tokenizer in `folder`."""
    import torch
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(bert_config(word_tokenizer(folder), **options))
    model.eval().save_pretrained(folder)
    return folder


def make_decoder(folder: Path, kind: str, *, template: str = "", padding_side: str = "right", **options: Any) -> Path:
    """A one-output Llama, Qwen3 or GPT-2 classifier; it names no padding token unless `pad_token_id` is given."""
    import torch
    from transformers import AutoModelForSequenceClassification

    tokenizer = tiny_tokenizer(kind)
    config = tiny_config(kind, tokenizer)
    config.num_labels = 1
    config.pad_token_id = options.get("pad_token_id")
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).eval().save_pretrained(folder)
    tokenizer.chat_template = template or tokenizer.chat_template
    tokenizer.padding_side = padding_side
    tokenizer.save_pretrained(folder)
    return folder


def make_deberta(folder: Path) -> Path:
    """A one-output DeBERTa-v2 with relative positions, as OpenAssistant's reward models are."""
    import torch
    from transformers import AutoModelForSequenceClassification, DebertaV2Config

    config = DebertaV2Config(
        vocab_size=word_tokenizer(folder),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.3,
        relative_attention=True,
        position_buckets=16,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        pad_token_id=0,
        num_labels=1,
    )
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).eval().save_pretrained(folder)
    return folder


def make_headed(folder: Path, architecture: str, heads: dict[str, tuple[int, ...]], **config: Any) -> Path:
    """A Llama backbone and random head tensors of the given names and shapes, as models with code of their own save
    them: the backbone's names begin with "model.", the config names a class that transformers does not know."""
    import json

    import torch
    from safetensors.torch import save_file
    from transformers import AutoModel

    tokenizer = tiny_tokenizer("llama")
    torch.manual_seed(0)
    backbone = AutoModel.from_config(tiny_config("llama", tokenizer)).eval()
    tensors = {f"model.{name}": value.clone() for name, value in backbone.state_dict().items()}
    tensors |= {name: 0.2 * torch.randn(shape) for name, shape in heads.items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    own = {"architectures": [architecture], "auto_map": {"AutoModelForSequenceClassification": f"own.{architecture}"}}
    (folder / "config.json").write_text(json.dumps(backbone.config.to_dict() | own | config))
    (folder / "own.py").write_text("raise RuntimeError('this code must not run')\n")
    tokenizer.save_pretrained(folder)
    return folder
