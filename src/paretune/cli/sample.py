"""`paretune sample`: answers to score, for those who have only prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.options import BatchSize, Json, MaxNewTokens, Overwrite, Seed, SkipBadRows, TopP
from paretune.cli.output import emit, say
from paretune.cli.progress import bars


def sample(
    prompts: Annotated[Path, typer.Argument(metavar="PROMPTS", help="Rows with a `prompt`, or .txt, one a line.")],
    model: Annotated[str, typer.Option("--model", help="A causal language model: a folder or a Hugging Face id.")],
    out: Annotated[Path, typer.Option("--out", help="Where the rows go (.jsonl or .jsonl.gz).")],
    n: Annotated[int, typer.Option("-n", min=1, help="Completions a prompt.")] = 4,
    vary: Annotated[
        Path | None,
        typer.Option(
            "--vary",
            help="Text file of instructions, one a line (an empty line: none). A prompt's completions are sampled "
            "under them in turn, so that they differ in what will be scored.",
        ),
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 takes the likeliest token.")] = 0.8,
    top_p: TopP = 0.95,
    seed: Seed = 0,
    batch_size: BatchSize = 32,
    dtype: Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")] = "auto",
    skip_bad_rows: SkipBadRows = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Sample n completions a prompt.

    An interrupted run goes on where it stopped.
    """
    from paretune.policy import sample as run

    result = run(
        prompts,
        model,
        out,
        n=n,
        vary=vary,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        batch_size=batch_size,
        overwrite=overwrite,
        skip_bad_rows=skip_bad_rows,
        dtype=dtype,
        progress=bars(),
    )

    def show() -> None:
        prompts_said = "1 prompt" if result.rows == 1 else f"{result.rows:,} prompts"
        say(f"{out}: {result.completions:,} completions of {prompts_said}, {result.tokens:,} tokens")
        if result.resumed:
            say(
                f"{result.resumed:,} prompts were there from an interrupted run; "
                f"{result.new_tokens:,} tokens are of this one"
            )
        if result.dropped:
            say(f"{result.dropped:,} prompts were dropped")

    emit(result, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(sample)
