"""The page's style sheet and script, and the policy that lets nothing else in.

Both are files beside this one, put into the page as they are. A content security policy names them by their SHA-256
(W3C Content Security Policy Level 3, hash sources): any other script or style, from wherever it came, does not run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def asset(name: str) -> str:
    """A file of this folder as text, ready to stand inside its element."""
    return "\n" + files("paretune.evaluation.page").joinpath(name).read_text(encoding="utf-8")


def source_hash(text: str) -> str:
    """The hash source by which a policy allows exactly this script or style."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def content_policy() -> str:
    """Nothing from anywhere, except this page's own style and script."""
    return (
        f"default-src 'none'; style-src {source_hash(asset('report.css'))}; "
        f"script-src {source_hash(asset('report.js'))}; base-uri 'none'; form-action 'none'"
    )


def island(data: Any) -> str:
    """Data for the script as JSON that no text in it can close: no angle bracket or ampersand is left as it is.

    Raises:
        ValueError: NaN or an infinity in the data, which JSON does not have.
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json">{text}</script>'
