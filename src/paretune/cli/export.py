"""`paretune export`: a policy as a plain model, or as what vLLM serves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paretune.cli.options import Base, Json, Overwrite, PolicyFolder, Weights
from paretune.cli.output import complain, emit, say


def export(
    policy: PolicyFolder,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where to write it.")],
    to: Annotated[
        str, typer.Option("--to", metavar="merged|vllm", help="A plain transformers model, or what vLLM serves.")
    ] = "merged",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="For vllm: the adapter by itself, in place of a merged model.")
    ] = False,
    weights: Weights = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype", help="Precision to merge and save in (float32, bfloat16); that of training if not said."
        ),
    ] = None,
    base: Base = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write a policy in a form that other software runs.

    `merged` is a plain transformers folder: the adapter is in the weights. `vllm` holds such a model and, where vLLM's
    pooling engine can run it, the sensing head beside its decoder. A policy of several adapters is one model for some
    --weights only. Each folder says in its README.md how it is run and asked.
    """
    from paretune.policy.export import check_export, export_policy
    from paretune.policy.folder import read_objectives
    from paretune.policy.weights import check_weights, parse_weights

    check_export(policy, out, to, adapter=adapter, overwrite=overwrite)
    names = [objective.name for objective in read_objectives(policy)]
    weighed = check_weights(parse_weights(weights), names) if weights is not None else None
    done = export_policy(
        policy, out, to=to, weights=weighed, adapter=adapter, base=base, dtype=dtype, overwrite=overwrite
    )
    if done.why is not None:
        complain(
            f"vLLM's pooling engine gets no sensing head: {done.why}. `paretune serve --engine vllm` senses all the "
            "same, from the model that answers",
            "note: ",
        )

    def show() -> None:
        say(f"{done.model}: the {'adapter' if adapter else 'model'}")
        if done.sensor is not None:
            say(f"{done.sensor}: the sensing head, for vLLM's pooling engine")
        say(f"{done.folder / 'README.md'}: how to run it")

    emit(done, as_json, show)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command()(export)
