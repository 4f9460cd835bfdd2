"""A tiny classifier and a tiny encoder on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tiny_classifiers import LABELS, make_bert


@pytest.fixture(scope="session")
def tiny_classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with three named labels."""
    names = dict(enumerate(LABELS))
    return make_bert(
        tmp_path_factory.mktemp("classifier"), id2label=names, label2id={name: at for at, name in names.items()}
    )


@pytest.fixture(scope="session")
def tiny_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT without a head."""
    return make_bert(tmp_path_factory.mktemp("encoder"), "AutoModel")
