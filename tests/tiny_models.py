"""Tiny causal language models with random weights, made by script: a Llama, a Qwen3 and a GPT-2.

Each folder is what `from_pretrained` expects (config, safetensors, tokenizer), is a few hundred kilobytes large and is
the same on every run. They differ where real models differ:

    kind    chat template            BOS                                       pad token   context
    llama   Llama-3 style            in the template and by the tokenizer      none        512
    qwen    ChatML                   none                                      own         512
    gpt2    none                     none (its only special token ends text)   none        256

Run `python tests/tiny_models.py FOLDER` to have all three on disk.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

KINDS = ("llama", "qwen", "gpt2")

SENTENCES = [
    "Why is the sky blue? Because air scatters short waves of light more than long ones.",
    "I feel sad today. I am sorry to hear that; would you like to talk about what happened?",
    "Tell me a joke. Why did the scarecrow win a prize? He was outstanding in his field!",
    "Give me a list of three fruits: apples, pears and plums.",
    "What is the capital of France? The capital of France is Paris.",
    "Please explain in detail how a bicycle stays upright while it is moving forward.",
    "Answer in one short sentence. Be very cheerful and positive. Use plain words.",
    "Your response must satisfy the following scores: helpful, harmless, brevity, relevance, positivity.",
    "No, that is not possible, and it would be wrong to try; the numbers 0.25, 0.5, 0.75 and 1 are steps.",
    "Human: How do I bake bread? Assistant: Mix flour, water, salt and yeast, wait, then bake it hot.",
]

LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = {
    "llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "qwen": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "gpt2": ["<|endoftext|>"],
}


def make_tiny(folder: Path | str, kind: str, seed: int = 0) -> Path:
    """Write the tiny model of `kind` into `folder` and return it."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = tiny_tokenizer(kind)
    state = torch.get_rng_state()
    try:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(tiny_config(kind, tokenizer))
    finally:
        torch.set_rng_state(state)
    model = model.to(torch.float32).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def tiny_tokenizer(kind: str) -> Any:
    """A byte-level BPE tokenizer of 400 tokens, trained on a few sentences."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS[kind],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(SENTENCES, trainer)
    if kind == "llama":
        bos = SPECIALS[kind][0]
        raw.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, raw.token_to_id(bos))]
        )
        names = {"bos_token": bos, "eos_token": "<|eot_id|>"}
    elif kind == "qwen":
        names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    else:
        names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    extra = [token for token in SPECIALS[kind] if token not in names.values()]
    limit = 256 if kind == "gpt2" else 512
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        additional_special_tokens=extra,
        model_max_length=limit,
        clean_up_tokenization_spaces=False,
        **names,
    )
    if kind != "gpt2":
        tokenizer.chat_template = LLAMA_TEMPLATE if kind == "llama" else CHATML_TEMPLATE
    return tokenizer


def tiny_config(kind: str, tokenizer: Any) -> Any:
    """Hidden size 32, two layers; a wide initialisation, so that next-token distributions are far from flat."""
    from transformers import GPT2Config, LlamaConfig, Qwen3Config

    ids = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "initializer_range": 0.2,
    }
    if kind == "gpt2":
        return GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=256, **ids)
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
    }
    return (LlamaConfig if kind == "llama" else Qwen3Config)(**shape, tie_word_embeddings=kind == "qwen", **ids)


if __name__ == "__main__":
    for name in KINDS:
        print(make_tiny(Path(sys.argv[1]) / name, name))


WINDOWED = [("mistral", "sdpa"), ("gemma2", "eager"), ("gemma3", "sdpa")]  # Gemma 2 caps its attention: eager only


def windowed(kind: str, dtype: Any = None, attention: str = "sdpa") -> Any:
    """A tiny model some or all of whose layers see eight tokens back only."""
    import torch
    from transformers import AutoModelForCausalLM, Gemma2Config, Gemma3TextConfig, MistralConfig

    shape = {
        "vocab_size": 400, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "sliding_window": 8,
        "initializer_range": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if kind == "mistral":
        config = MistralConfig(**shape)
    else:
        config = (Gemma2Config if kind == "gemma2" else Gemma3TextConfig)(
            **shape, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
        )
    config._attn_implementation = attention
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    torch.set_rng_state(state)
    with torch.no_grad():
        for name, each in model.named_parameters():
            if "norm" in name:  # Gemma's norms start as the identity, and would hide a wrong one
                each.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(len(name)))
    return model.to(dtype or torch.float32).eval()
