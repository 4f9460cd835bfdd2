"""The formats that can be read, one small file a data set, and how the right one is found."""

from __future__ import annotations

from paretune.data.adapters import alpaca, chat, helpsteer, nectar, own, pku_saferlhf, ultrafeedback
from paretune.data.adapters.base import Adapter, Raw
from paretune.errors import InputError, did_you_mean

ADAPTERS: tuple[Adapter, ...] = (
    own.ROWS,
    own.PROMPTS,
    own.TRL,
    own.UNPAIRED,
    own.RESPONSE,
    own.HH,
    ultrafeedback.ULTRAFEEDBACK,
    ultrafeedback.BINARIZED,
    helpsteer.RATED,
    helpsteer.PREFERENCE,
    helpsteer.THIRD,
    pku_saferlhf.PKU,
    pku_saferlhf.JUDGED,
    alpaca.OUTPUTS,
    alpaca.ALPACA,
    nectar.NECTAR,
    chat.MESSAGES,
    chat.SHAREGPT,
)
"""What can be read, in the order in which it is listed."""


def list_formats() -> list[tuple[str, str, str]]:
    """(name, what it is, the columns that tell it) of every format."""
    return [(each.name, each.about, each.needs) for each in ADAPTERS]


def named(name: str) -> Adapter:
    """The adapter called `name`. Raises `InputError`."""
    for each in ADAPTERS:
        if each.name == name:
            return each
    raise InputError(f"unknown format '{name}'.{did_you_mean(name, [each.name for each in ADAPTERS])}")


def detect(record: Raw) -> Adapter | None:
    """The one format that a record's columns fit, or None.

    A row of our own contract is one whatever else it holds; prompts alone are what fits nothing else.

    Raises:
        InputError: several formats fit, or one that is known and refused.
    """
    if own.STEPWISE.fits(record):
        raise InputError(own.STEPWISE.refused)
    if own.ROWS.fits(record):
        return own.ROWS
    fitting = [each for each in ADAPTERS if each not in (own.ROWS, own.PROMPTS) and each.fits(record)]
    if len(fitting) > 1:
        names = ", ".join(each.name for each in fitting)
        raise InputError(
            f"the columns {', '.join(map(str, record))} fit several formats ({names}); run `paretune data convert` "
            "with --format NAME"
        )
    if fitting:
        return fitting[0]
    if own.TEXT_ONLY.fits(record):
        raise InputError(own.TEXT_ONLY.refused)
    return own.PROMPTS if own.PROMPTS.fits(record) else None


__all__ = ["ADAPTERS", "Adapter", "detect", "list_formats", "named"]
