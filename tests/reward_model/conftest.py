"""Fixtures of the reward models' room: rows with preferences and ratings, a bench, quick training runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paretune.data.rows import Row
from paretune.reward_model import train_reward_model
from paretune.reward_model.config import RewardConfig
from tiny_rewards import QUICK, Bench, as_row, rows_of


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows of `rows_of` on disk."""
    path = tmp_path_factory.mktemp("reward-rows") / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of()))
    return path


@pytest.fixture
def quick(rows_file: Path, tiny_qwen: Path, tmp_path: Path) -> Callable[..., Path]:
    """Trains a reward model in a blink and returns its folder."""

    def run(name: str = "reward", *settings: str, **options: Any) -> Path:
        out = tmp_path / name
        data, model = options.pop("data", rows_file), options.pop("model", tiny_qwen)
        train_reward_model(data, str(model), out, settings=[*QUICK, *settings], **options)
        return out

    return run


@pytest.fixture(scope="session")
def trained(rows_file: Path, tiny_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of both objectives, shared by the tests that only read it."""
    out = tmp_path_factory.mktemp("trained") / "reward"
    train_reward_model(rows_file, str(tiny_qwen), out, settings=[*QUICK, "epochs=3", "lr=1e-3"])
    return out


@pytest.fixture
def bench(exact: Callable[[Any], Any], tiny_qwen: Path) -> Callable[..., Bench]:
    """Builds a bench over rows (those of `rows_of` by default)."""

    def make(names: list[str], *, rows: list[Row] | None = None, model: Path = tiny_qwen, **config: Any) -> Bench:
        given = rows if rows is not None else [as_row(each) for each in rows_of(8)]
        return Bench(model, given, names, RewardConfig(**{"lora_dropout": 0.0, "lora_r": 4, **config}), exact)

    return make
