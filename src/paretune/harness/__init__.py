"""A policy under other people's measures: lm-evaluation-harness tasks, AlpacaEval 2 and Arena-Hard answer files.

`benchmark` runs tasks on a policy and on its base model, request by request the same, and says what alignment cost;
`paretune.harness.lm.PolicyLM` is the policy as the harness's own model class; `leaderboard` turns answers into files
that AlpacaEval 2 and Arena-Hard read. Only the first two need lm-eval (`pip install "paretune[lm-eval]"`).
"""

from paretune.harness.benchmark import benchmark
from paretune.harness.leaderboard import FORMATS, check_leaderboard, write_leaderboard

__all__ = ["FORMATS", "benchmark", "check_leaderboard", "write_leaderboard"]
