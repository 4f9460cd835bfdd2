"""Make the demo's scored rows anew: `python -m paretune.demo.make_data` (about 15 minutes on two cores).

The same as

    paretune sample src/paretune/demo/prompts.jsonl --model MODEL -n 8 --vary src/paretune/demo/instructions.txt \\
        --max-new-tokens 64 --temperature 0.7 --top-p 0.95 --out sampled.jsonl
    paretune score sampled.jsonl --objective relevance=embed:relevance --objective positivity=lexical:positivity \\
        --objective brevity=lexical:brevity --out src/paretune/demo/scored.jsonl.gz

The prompts and the profile that each of them wants were written by hand for this project.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from paretune.demo.model import demo_model
from paretune.demo.run import HERE, MAX_NEW_TOKENS, SCORED
from paretune.policy import sample
from paretune.rewards import parse_objective, score

OBJECTIVES = ("relevance=embed:relevance", "positivity=lexical:positivity", "brevity=lexical:brevity")
COMPLETIONS = 8


def make(out: Path, *, seed: int = 0) -> None:
    """Sample and score the demo's prompts into `out`."""
    with TemporaryDirectory(dir=out.parent) as folder:
        sampled = Path(folder) / "sampled.jsonl"
        sample(
            HERE / "prompts.jsonl",
            str(demo_model()),
            sampled,
            n=COMPLETIONS,
            vary=HERE / "instructions.txt",
            max_new_tokens=MAX_NEW_TOKENS,
            temperature=0.7,
            top_p=0.95,
            seed=seed,
            batch_size=64,
        )
        score(sampled, [parse_objective(each) for each in OBJECTIVES], out, overwrite=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Make the demo's scored rows anew.")
    parser.add_argument("--out", type=Path, default=SCORED)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make(arguments.out, seed=arguments.seed)
