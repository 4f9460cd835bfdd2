"""What guidance costs when generating:

    python benchmarks/generate.py [--json] [--prompt 128] [--new 64] [--long 512] [--repeat 9] [--dtype auto]

On the demo's model with a fresh head, all through `Policy` or the functions it calls. Ratios of times, each the median
over rounds in which the arms ran one after the other, their order turning from round to round:

    time_ratio_plain                self-guided generation (prefill the raw prompt, head, render, continue the same
                                    cache) / generation by the same engine on the prompt that carries the same profile
    time_ratio_plain_batch          the same for a batch of eight prompts of mixed length, half as many tokens each
    time_ratio_transformers         self-guided generation / transformers' own `generate` on the rendered prompt
    first_token_ratio_two_passes    to the first token of a prompt of `--long` tokens: self-guided / a pass for the
                                    head, then a whole prefill of the augmented prompt

No token ends an answer here, so that every arm writes the same number of tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from common import run

from paretune.data.prompts import as_chat
from paretune.demo import demo_model
from paretune.errors import check_whole
from paretune.policy import Policy, Renderer
from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.engine import Sampling, decode, prefill
from paretune.policy.head import HeadConfig, SensingHead
from paretune.profile import Objective

NAMES = ("helpfulness", "brevity", "positivity")
TEXT = "Tell me why the sky is blue in the day, red when the sun goes down, and black at night over the sea. "


class Endless(Renderer):
    """A renderer for which no token ends an answer."""

    def stop_ids(self, generation_eos: int | Sequence[int] | None) -> set[int]:
        """None."""
        return set()


def fresh_policy(dtype: str) -> Policy:
    """The demo's model with a head that has learnt nothing: the work is the same."""
    causal, tokenizer = load_backbone(str(demo_model()), dtype=dtype)
    causal.generation_config.eos_token_id = None
    objectives = [Objective(name) for name in NAMES]
    torch.manual_seed(0)
    return Policy(
        causal=causal,
        tokenizer=tokenizer,
        renderer=Endless(tokenizer, objectives),
        objectives=objectives,
        method="sga",
        base="demo",
        head=SensingHead(hidden_size(causal), len(NAMES), HeadConfig()).eval(),
    )


def prompt_of(policy: Policy, tokens: int) -> str:
    """A prompt whose prefix has that many tokens, or as near below as words allow; one word at least."""
    words = (TEXT * max(1, tokens // 8)).split()
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        fits = len(prefix_of(policy, " ".join(words[:middle]))) <= tokens
        low, high = (middle, high) if fits else (low, middle - 1)
    return " ".join(words[:low])


def rendered(policy: Policy, prompt: str) -> list[int]:
    """The ids of the prompt with the profile that is sensed for it."""
    profile = policy.sense([prompt])[0]
    return [*prefix_of(policy, prompt), *policy.renderer.suffix(as_chat(prompt, "prompt"), profile)]


def prefix_of(policy: Policy, prompt: str) -> list[int]:
    """The ids of the raw prompt."""
    return policy.renderer.prefix(as_chat(prompt, "prompt"))


def plain(policy: Policy, prompts: Sequence[list[int]], new: int) -> list[str]:
    """Generation by the same engine on prompts that need no sensing."""
    pad, count = policy.tokenizer.pad_token_id, len(prompts)
    state = prefill(policy.causal, prompts, pad)
    answers = decode(
        policy.causal,
        state,
        [[]] * count,
        sampling=Sampling(new),
        stop_ids=set(),
        pad_id=pad,
        seeds=[0] * count,
    )
    return [policy.tokenizer.decode(answer.ids, skip_special_tokens=True) for answer in answers]


def transformers_generate(policy: Policy, ids: list[int], new: int) -> str:
    """Generation by transformers."""
    tokens = torch.tensor([ids], device=policy.causal.device)
    out = policy.causal.generate(
        tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        max_new_tokens=new,
        pad_token_id=policy.tokenizer.pad_token_id,
    )
    return str(policy.tokenizer.decode(out[0, len(ids) :], skip_special_tokens=True))


def seconds(arm: Callable[[], Any]) -> float:
    """Wall seconds of one run."""
    start = time.perf_counter()
    arm()
    return time.perf_counter() - start


def alternate(arms: Sequence[Callable[[], Any]], repeat: int) -> list[list[float]]:
    """Seconds [arm][round]; every arm runs once a round, in turning order, after one run that is not counted."""
    for arm in arms:
        arm()
    taken: list[list[float]] = [[] for _ in arms]
    for turn in range(repeat):
        order = range(len(arms)) if turn % 2 == 0 else reversed(range(len(arms)))
        for i in order:
            taken[i].append(seconds(arms[i]))
    return taken


def ratio(first: Sequence[float], second: Sequence[float]) -> float:
    """Median of the paired ratios."""
    return round(statistics.median(one / two for one, two in zip(first, second, strict=True)), 3)


def measure(policy: Policy, prompt_tokens: int, new: int, long_tokens: int, repeat: int) -> dict[str, Any]:
    """All figures of the benchmark."""
    half = max(1, new // 2)
    prompt, long = prompt_of(policy, prompt_tokens), prompt_of(policy, long_tokens)
    mixed = [prompt_of(policy, max(16, prompt_tokens * eighths // 8)) for eighths in range(1, 9)]
    ids, long_ids, mixed_ids = (
        rendered(policy, prompt),
        rendered(policy, long),
        [rendered(policy, one) for one in mixed],
    )
    guided, same, theirs = alternate(
        [
            lambda: policy.generate([prompt], max_new_tokens=new),
            lambda: plain(policy, [ids], new),
            lambda: transformers_generate(policy, ids, new),
        ],
        repeat,
    )
    guided_batch, same_batch = alternate(
        [
            lambda: policy.generate(mixed, max_new_tokens=half),
            lambda: plain(policy, mixed_ids, half),
        ],
        repeat,
    )
    one_prefill, two_passes = alternate(
        [
            lambda: policy.generate([long], max_new_tokens=1),
            lambda: (policy.sense([long]), plain(policy, [long_ids], 1)),
        ],
        repeat,
    )
    return {
        "dtype": str(policy.causal.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "prompt_tokens": len(prefix_of(policy, prompt)),
        "suffix_tokens": len(ids) - len(prefix_of(policy, prompt)),
        "new_tokens": new,
        "time_ratio_plain": ratio(guided, same),
        "time_ratio_plain_batch": ratio(guided_batch, same_batch),
        "time_ratio_transformers": ratio(guided, theirs),
        "tokens_per_second": round(new / statistics.median(guided), 1),
        "tokens_per_second_batch": round(len(mixed) * half / statistics.median(guided_batch), 1),
        "long_prompt_tokens": len(prefix_of(policy, long)),
        "first_token_ratio_two_passes": ratio(one_prefill, two_passes),
        "first_token_seconds": round(statistics.median(one_prefill), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="what guidance costs when generating")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--prompt", type=int, default=128, help="tokens of the prompt that is answered")
    parser.add_argument("--new", type=int, default=64, help="tokens of its answer")
    parser.add_argument("--long", type=int, default=512, help="tokens of the prompt timed to its first token")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    for name in ("prompt", "new", "long", "repeat"):
        check_whole(getattr(options, name), f"--{name}", least=1)
    out = measure(fresh_policy(options.dtype), options.prompt, options.new, options.long, options.repeat)
    print(json.dumps(out) if options.json else "\n".join(f"{key:30} {value}" for key, value in out.items()))


if __name__ == "__main__":
    run(main)
