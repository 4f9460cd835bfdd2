"""Training settings: a frozen dataclass per method, filled from a preset, a YAML file and key=value settings.

An unknown key is an error that names the nearest key; a value of the wrong type is one that says what is wanted. Nested
settings (the head's) are written with a dot: `head.width=512`.
"""

from __future__ import annotations

import copy
import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from paretune.errors import InputError, did_you_mean
from paretune.yaml_text import parse_yaml

WORKING = ("save_every", "keep")
"""Settings of how a training is kept safe, which change nothing of what it makes."""
HEADLESS = {"lr_head": "the method trains no sensing head, which it is the learning rate of"}
"""`TrainConfig.without_effect` of methods that train an adapter alone."""


@dataclass(frozen=True)
class TrainConfig:
    """What the shared loop needs to know. `batch_size` counts prompts per optimizer step, whatever fits at one time.

    `micro_tokens`: padded tokens per forward pass (the effective batch does not depend on it). `lora_layers`: LoRA on
    this many upper layers, 0 = all. `lr_head`: 0 = the same as `lr`. `betas`: Adam's.

    Of the data: `validation`, `test` and `near_duplicates` as in `paretune.data.split_rows`; `pairs`, `pair_weights`
    and `pair_margin` are rule, weights and margin of `paretune.data.build_pairs`.

    `max_steps`, `max_tokens`: training ends, and its schedule with it, after so many optimizer steps, or with the step
    that brings the tokens computed to so many (0: after `epochs`, which is the end in any case). A method of several
    adapters divides them.

    `nonfinite`: a batch whose loss or gradient is not finite stops the training, or is left out and counted.

    `save_every`: steps between checkpoints (0: one at the end of every epoch); `keep`: how many are kept. They play no
    part in what comes out (`WORKING`), so a training may go on with others.
    """

    without_effect: ClassVar[Mapping[str, str]] = types.MappingProxyType({})
    """Shared settings that mean nothing to a method, and why: any value but the default is refused."""
    seed: int = 0
    epochs: int = 2
    max_steps: int = 0
    max_tokens: int = 0
    batch_size: int = 64
    micro_tokens: int = 2048
    max_length: int = 1024
    lr: float = 1e-5
    lr_head: float = 0.0
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: int = 0
    betas: tuple[float, float] = (0.95, 0.95)
    weight_decay: float = 0.0
    clip: float = 5.0
    dtype: str = "auto"
    lora_r: int = 32
    lora_alpha: int = 64
    lora_dropout: float = 0.05
    lora_layers: int = 0
    gradient_checkpointing: bool = False
    validation: float = 0.1
    test: float = 0.1
    near_duplicates: float = 0.8
    pairs: Literal["mean", "weights", "pareto", "best-random"] = "mean"
    pair_weights: dict[str, float] = field(default_factory=dict)
    pair_margin: float = 0.0
    scale: Literal["quantile", "minmax", "zscore", "sigmoid", "fixed"] = "quantile"
    nonfinite: Literal["stop", "skip"] = "stop"
    save_every: int = 50
    keep: int = 1

    def __post_init__(self) -> None:
        for name, why in self.without_effect.items():
            self.refuse_changed(name, why)
        positive = ("epochs", "batch_size", "micro_tokens", "max_length", "lr", "clip", "lora_r", "lora_alpha", "keep")
        for name in positive:
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"must be above 0, found {getattr(self, name)}", field=name)
        free = ("lr_head", "warmup_steps", "weight_decay", "lora_layers", "pair_margin")
        for name in (*free, "save_every", "max_steps", "max_tokens"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError(f"must be 0 or more, found {getattr(self, name)}", field=name)
        for name in ("lora_dropout", "validation", "test"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"must lie in [0, 1), found {getattr(self, name)}", field=name)
        if not 0 <= self.near_duplicates <= 1:
            raise InputError(f"must lie in [0, 1], found {self.near_duplicates}", field="near_duplicates")
        if (self.pairs == "weights") != bool(self.pair_weights):
            raise InputError("belongs to pairs=weights, which needs a weight for an objective", field="pair_weights")
        if not 0 <= self.seed < 2**63:
            raise InputError(f"must be a whole number from 0 to 2^63 - 1, found {self.seed}", field="seed")
        if self.epochs > 10_000:
            raise InputError(f"must be at most 10000, found {self.epochs}", field="epochs")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"must both lie in [0, 1), found {self.betas}", field="betas")
        if self.validation + self.test >= 1:
            raise InputError("validation and test together leave nothing to train on", field="validation")

    def refuse_changed(self, name: str, why: str) -> None:
        """`InputError` where a setting that has no effect has another value than its default."""
        if getattr(self, name) != type(self).__dataclass_fields__[name].default:
            raise InputError(f"has no effect here: {why}", field=name)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, of what plays a part in what comes out."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key not in WORKING}


C = TypeVar("C", bound=TrainConfig)


def resolve(
    kind: type[C],
    *,
    presets: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
    default_preset: str = "",
    file: Path | str | None = None,
    settings: Sequence[str] = (),
    before: Mapping[str, Any] | None = None,
) -> C:
    """The config of class `kind`: its defaults, then the preset's values, the file's, and the settings'.

    `before`: all settings of an earlier training, which then stand in the preset's place.
    """
    values = _read_yaml(file) if file is not None else {}
    merged: dict[str, Any]
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"a setting is written key=value, found '{setting}'")
        _put(values, key.strip(), _parse_scalar(text))
    if before is not None:
        if values.get("preset", before.get("preset")) != before.get("preset"):
            raise InputError(f"training goes on with preset '{before.get('preset')}'", file=file, field="preset")
        merged = copy.deepcopy(dict(before))
        for key, value in values.items():
            _put(merged, key, value)
        values = merged
    elif presets:
        preset = values.pop("preset", default_preset)
        if not isinstance(preset, str) or preset not in presets:
            raise InputError(f"unknown preset '{preset}'.{did_you_mean(str(preset), presets)}", file=file)
        merged = {"preset": preset}
        for source in (presets[preset], values):
            for key, value in source.items():
                _put(merged, key, value)
        values = merged
    return build(kind, values, file=file)


def _read_yaml(path: Path | str) -> dict[str, Any]:
    try:
        data = parse_yaml(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such config file", file=path) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", file=path) from None
    except InputError as error:
        raise InputError(error.message, file=path, line=error.line) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError("must hold a mapping of settings", file=path)
    return {str(key): value for key, value in data.items()}


def _parse_scalar(text: str) -> Any:
    try:
        return parse_yaml(text)
    except InputError:
        return text


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set a possibly dotted key; a mapping merges into what is there."""
    first, dot, rest = key.partition(".")
    if dot:
        inner = values.setdefault(first, {})
        if not isinstance(inner, dict):
            raise InputError(f"'{first}' has no settings below it", field=key)
        _put(inner, rest, value)
    elif isinstance(value, Mapping) and isinstance(values.get(first), dict):
        for name, each in value.items():
            _put(values[first], str(name), each)
    else:
        values[first] = dict(value) if isinstance(value, Mapping) else value


T = TypeVar("T")


def build(kind: type[T], values: Mapping[str, Any], *, file: Path | str | None = None, above: str = "") -> T:
    """An instance of dataclass `kind` from plain values, every one checked against its annotation."""
    hints = typing.get_type_hints(kind)
    known = {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.init}  # type: ignore[arg-type]
    ready: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            near = did_you_mean(f"{above}{key}", [f"{above}{name}" for name in known])
            raise InputError(f"unknown setting '{above}{key}'.{near}", file=file)
        ready[key] = _convert(known[key], value, f"{above}{key}", file)
    try:
        return kind(**ready)
    except InputError as error:
        raise InputError(error.message, file=file, field=f"{above}{error.field}" if error.field else None) from None


def _convert(hint: Any, value: Any, key: str, file: Path | str | None) -> Any:
    """`value` as the annotated type, or an `InputError` that says what is wanted."""
    wrong = InputError(f"must be {_words(hint)}, found {value!r}", file=file, field=key)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise wrong
        return build(typing.cast(type[Any], hint), value, file=file, above=f"{key}.")
    origin = typing.get_origin(hint)
    if origin is Literal:
        if value not in typing.get_args(hint):
            raise InputError(
                f"'{value}' is not allowed.{did_you_mean(str(value), map(str, typing.get_args(hint)))}",
                file=file,
                field=key,
            )
        return value
    if origin is dict:
        if not isinstance(value, Mapping):
            raise wrong
        inner_hint = typing.get_args(hint)[1]
        return {str(name): _convert(inner_hint, item, f"{key}.{name}", file) for name, item in value.items()}
    if origin is list:
        if not isinstance(value, (list, tuple)):
            raise wrong
        return [_convert(typing.get_args(hint)[0], item, key, file) for item in value]
    if origin is tuple:
        inner = typing.get_args(hint)
        if not isinstance(value, (list, tuple)) or len(value) != len(inner):
            raise wrong
        return tuple(_convert(each, item, key, file) for each, item in zip(inner, value, strict=True))
    if isinstance(value, str) and hint in (int, float):
        try:
            value = float(value)  # YAML reads 1e-5 as text
        except ValueError:
            raise wrong from None
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not hint:
        raise wrong
    return value


def _words(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    if typing.get_origin(hint) is tuple:
        return f"a list of {len(typing.get_args(hint))} numbers"
    if typing.get_origin(hint) is list:
        return "a list"
    return names.get(hint, "a mapping of settings")
