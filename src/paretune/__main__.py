"""`python -m paretune`: the same as the command `paretune`."""

from __future__ import annotations

from paretune.cli.app import main

if __name__ == "__main__":
    main()
