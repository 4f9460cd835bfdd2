"""Hostile files: each is one clear error, and no pickle in them runs. The checks load no model."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from paretune.cli.app import app
from paretune.data.read import iter_rows
from paretune.errors import InputError
from paretune.files import parse_json
from paretune.policy.folder import read_objectives
from paretune.policy.trust import check_folder, check_safetensors

ADAPTER = {"peft_type": "LORA", "r": 4}


def tensors(header, data=b"", length=None):
    """The bytes of a safetensors file."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


ONE = {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}


def test_honest_files_pass(tmp_path):
    (tmp_path / "head.safetensors").write_bytes(tensors(ONE, bytes(4)))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(ADAPTER))
    check_folder(tmp_path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        tensors(ONE, bytes(4), length=1 << 62),
        tensors(ONE, bytes(8)),
        tensors({"a": {**ONE["a"], "shape": [1 << 62]}}, bytes(4)),
        tensors({"a": {**ONE["a"], "shape": [-1]}}, bytes(4)),
        tensors({"a": {**ONE["a"], "dtype": "object"}}, bytes(4)),
        tensors({**ONE, "b": ONE["a"]}, bytes(4)),
        tensors(b"[" * 100_000 + b"]" * 100_000),
        tensors(b'{"a": 1, "a": 2}'),
    ],
)
def test_a_safetensors_header_that_does_not_fit_its_file(tmp_path, raw):
    path = tmp_path / "head.safetensors"
    path.write_bytes(raw)
    with pytest.raises(InputError, match=r"head\.safetensors"):
        check_folder(tmp_path)


@pytest.mark.parametrize("name", ["adapter_model.bin", "training_args.bin", "rng_state.pth", "own.py", "optimizer.pt"])
def test_a_pickle_is_refused_and_does_not_run(tmp_path, name):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "policy.json").write_text('{"format": 1}')
    (tmp_path / "policy" / name).write_bytes(pickle.dumps(Payload()))
    with pytest.raises(InputError, match="can run code"):
        read_objectives(tmp_path / "policy")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", ["file", "folder", "broken"])
def test_a_link_out_of_the_folder(tmp_path, kind):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("{}")
    (tmp_path / "policy").mkdir()
    target = {"file": "secret/file", "folder": "secret", "broken": "nowhere"}[kind]
    (tmp_path / "policy" / "metrics.json").symlink_to(tmp_path / target)
    with pytest.raises(InputError, match=r"metrics\.json: (is a link that leads out|cannot be followed)"):
        check_folder(tmp_path / "policy")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": ["own.Own", null]}}', "auto_map"),
        ("adapter_config.json", json.dumps(ADAPTER | {"peft_type": "PROMPT_TUNING"}), "must be LORA"),
        ("adapter_config.json", json.dumps(ADAPTER | {"auto_mapping": {"parent_library": "os"}}), "auto_mapping"),
        ("adapter_config.json", json.dumps(ADAPTER | {"modules_to_save": ["lm_head"]}), "modules_to_save"),
        ("adapter_config.json", json.dumps(ADAPTER | {"eva_config": {"rho": 2}}), "eva_config"),
        ("adapter_config.json", json.dumps(ADAPTER | {"init_lora_weights": "pissa"}), "init_lora_weights"),
        ("adapter_config.json", '{"r": 1, "r": 2}', "twice"),
        ("metrics.json", '{"a":' * 200 + "1" + "}" * 200, "levels"),
        ("metrics.json", "[" * 200_000, "metrics"),
    ],
)
def test_a_configuration_that_would_load_something_else(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        check_folder(tmp_path)


def test_rows_that_unpack_out_of_proportion(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    with gzip.open(path, "wb") as file:
        for _ in range(80):
            file.write(b"\n" * (1 << 20))
    with pytest.raises(InputError, match="unpacks to more than 200 times its size"):
        list(iter_rows(path))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_json_or_an_input_error(raw):
    try:
        parse_json(raw, "any.json", unique=True)
    except InputError as error:
        assert "any.json" in str(error)


@settings(max_examples=100, deadline=None)
@given(raw=st.binary(max_size=200))
def test_any_bytes_are_rows_or_an_input_error(tmp_path_factory, raw):
    path = tmp_path_factory.getbasetemp() / "fuzz.jsonl"
    path.write_bytes(raw)
    try:
        assert all(row.prompt for row in iter_rows(path))
    except InputError as error:
        assert "fuzz.jsonl" in str(error)


SHAPES = st.recursive(st.none() | st.integers(), st.lists, max_leaves=5)


@settings(max_examples=100, deadline=None)
@given(header=st.dictionaries(st.text(max_size=5), SHAPES, max_size=3))
def test_any_header_without_bytes_is_empty_or_an_input_error(tmp_path_factory, header):
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    described = {name: {"dtype": "F32", "shape": each, "data_offsets": [0, 4]} for name, each in header.items()}
    path.write_bytes(tensors(described))
    try:
        check_safetensors(path)
        assert not header
    except InputError as error:
        assert "fuzz.safetensors" in str(error)


def test_the_command_line_says_it_in_one_error(tmp_path):
    (tmp_path / "policy.json").write_text('{"format": 1}')
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps({}))
    done = CliRunner().invoke(app, ["sense", str(tmp_path), "--prompt", "Hi"], prog_name="paretune")
    assert done.exit_code == 2 and "training_args.bin" in done.stderr and "Traceback" not in done.stderr
