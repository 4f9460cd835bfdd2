"""Data: read, validate, split, pair and write rows."""

from paretune.data.convert import ConvertReport, convert
from paretune.data.inspect import InspectReport, inspect
from paretune.data.pairs import Pair, PairReport, build_pairs, fit_objectives
from paretune.data.read import ReadReport, iter_rows, read_rows
from paretune.data.rows import Completion, Message, Messages, Row, prompt_key
from paretune.data.split import Split, split_rows
from paretune.data.write import (
    check_rows_target,
    objectives_path,
    store_objectives,
    stored_objectives,
    write_rows,
)

__all__ = [
    "Completion",
    "ConvertReport",
    "InspectReport",
    "Message",
    "Messages",
    "Pair",
    "PairReport",
    "ReadReport",
    "Row",
    "Split",
    "build_pairs",
    "check_rows_target",
    "convert",
    "fit_objectives",
    "inspect",
    "iter_rows",
    "objectives_path",
    "prompt_key",
    "read_rows",
    "split_rows",
    "store_objectives",
    "stored_objectives",
    "write_rows",
]
