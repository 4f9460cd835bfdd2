"""Fixtures: the fake policy in place of a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paretune.policy.folder
from evaluation import fakes


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Data, and a function that registers a fake policy and gives its folder."""
    data = fakes.write_data(tmp_path / "rows.jsonl")
    loaded: dict[Path, fakes.FakePolicy] = {}
    monkeypatch.setattr(paretune.policy, "load_policy", lambda folder: loaded[Path(folder)], raising=False)
    monkeypatch.setattr(paretune.policy.folder, "read_renderer", lambda folder: fakes.unloaded())

    class World:
        path = tmp_path
        rows = data

        @staticmethod
        def add(policy: fakes.FakePolicy, name: str = "policy") -> Path:
            policy.metadata.setdefault("data", {"path": str(data), "split": fakes.SPLIT, "targets": "wanted"})
            policy.metadata.setdefault("train_prompts", [])
            folder = fakes.policy_folder(tmp_path / name, policy)
            loaded[folder] = policy
            return folder

    return World
