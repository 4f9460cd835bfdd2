"""What the benchmarks share: bad input is one message and exit 2, as for the verbs."""

from __future__ import annotations

import sys
from collections.abc import Callable

from paretune.errors import InputError


def run(main: Callable[[], None]) -> None:
    """Run a benchmark; what the user can mend is told without a traceback."""
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
