"""The one place where something of transformers is loaded from a model's folder or the Hub, and what that may run.

A model can bring Python code of its own (`auto_map` in its JSON files), which transformers runs where it is told to.
Here it is told not to, unless the caller was told so by the user, by name: the one option is `--allow-remote-code`
of `score` (`allow_remote_code=True` in Python), for `hf:` and `embed:` rewards. Every loader goes through here.
"""

from __future__ import annotations

from typing import Any


def from_pretrained(auto: Any, location: str, *, allow_remote_code: bool = False, **options: Any) -> Any:
    """`auto.from_pretrained(location, ...)`, without the model's own code unless `allow_remote_code`.

    `auto` is one of transformers' Auto classes; the rest of the `options` are that method's. Raises what it raises.
    """
    return auto.from_pretrained(location, trust_remote_code=allow_remote_code is True, **options)
