"""Runs: their numbers passed to trackers, listed, and compared. Reads folders; loads no model."""

from paretune.tracking.compare import Comparison, compare_runs
from paretune.tracking.described import flat
from paretune.tracking.report import STATE, Report, reporting
from paretune.tracking.runs import FoundRuns, find_runs
from paretune.tracking.trackers import check_trackers

__all__ = [
    "STATE",
    "Comparison",
    "FoundRuns",
    "Report",
    "check_trackers",
    "compare_runs",
    "find_runs",
    "flat",
    "reporting",
]
