"""`paretune`: the verbs put together, and what all of them promise about errors.

A mistake of the user's is told in one message on stderr and exits 2; Ctrl-C exits 130. A traceback is our own fault.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from paretune import __version__
from paretune.cli import (
    benchmark,
    chat,
    compare_runs,
    data,
    demo,
    evaluate,
    export,
    front,
    generate,
    improve,
    methods,
    objectives,
    reward,
    runs,
    sample,
    score,
    sense,
    serve,
    train,
)
from paretune.cli.output import complain
from paretune.errors import InputError

BAD_INPUT, INTERRUPTED = 2, 130

QUIET = {
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}
"""Defaults for the libraries below, so that what a verb prints is its own; the user's environment goes first."""

DISK = {errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EROFS, errno.ENOTDIR, errno.EISDIR}
DISK |= {errno.ENAMETOOLONG, errno.EEXIST, errno.ENOENT, errno.EDQUOT, errno.EIO, errno.ELOOP}
"""What the system refuses because of a path or a disk: the user's to mend, not ours."""


class Verbs(TyperGroup):
    """The group of verbs; it turns the errors that a user can cause into a message and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            complain(str(error))
            raise typer.Exit(BAD_INPUT) from None
        except OSError as error:
            if error.errno not in DISK:
                raise
            complain(f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror}")
            raise typer.Exit(BAD_INPUT) from None
        except KeyboardInterrupt:
            complain("interrupted", word="")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paretune {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train one language model that senses, for each prompt, which trade-off between your objectives is right.

    The way of the data: prompts are answered (sample), the answers are scored (score), a policy is trained on them
    (train), asked (sense, generate) and measured (evaluate, front).
    """


for verb in (
    demo,
    data,
    sample,
    score,
    reward,
    train,
    improve,
    sense,
    generate,
    chat,
    serve,
    export,
    evaluate,
    benchmark,
    front,
    runs,
    compare_runs,
    methods,
    objectives,
):
    verb.register(app)


def main() -> None:
    """The entry point of the command `paretune`."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if not sys.warnoptions:  # what libraries plan for their next releases is nothing that a user can mend
        warnings.simplefilter("ignore", FutureWarning)
    # as `timeout` and schedulers send it: unwind, so that nothing half-made is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        app(prog_name="paretune")
    except KeyboardInterrupt:  # between two verbs' work, where the group cannot see it
        complain("interrupted", word="")
        sys.exit(INTERRUPTED)
