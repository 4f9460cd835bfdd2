"""`judge:MODEL@URL?rubric=NAME`: a language model behind an OpenAI-compatible endpoint that scores answers by a rubric.

The files: `spec` (what can be asked for), `rubric` (by what is judged), `prompt` (what the judge reads and how its
reply is read), `cache` (verdicts on disk), `endpoint` (limits and requests), `errors` (what is tried again), `reward`.
"""

from __future__ import annotations

from paretune.rewards.base import Reward, RewardKind
from paretune.rewards.judge.rubric import RUBRICS, Rubric, load_rubric
from paretune.rewards.judge.spec import FORM, JudgeSpec, parse_spec

__all__ = ["KIND", "RUBRICS", "JudgeSpec", "Rubric", "load_rubric", "parse_spec"]


def _check(rest: str) -> None:
    parse_spec(rest)


def _build(rest: str, allow_remote_code: bool) -> Reward:
    from paretune.rewards.judge.reward import JudgeReward

    return JudgeReward(parse_spec(rest))


def _fingerprint(rest: str) -> str:
    """Changes with the rubric's text and with the prompt around it."""
    from paretune.rewards.judge.prompt import PROMPT_VERSION, digest

    rubric = load_rubric(parse_spec(rest).rubric)
    return digest(PROMPT_VERSION, rubric.description, rubric.low, rubric.high)


KIND = RewardKind(
    prefix="judge",
    listed=(
        (FORM, "a language model behind an OpenAI-compatible API, by a rubric (helpfulness, honesty, ..., or a file)"),
    ),
    build=_build,
    check=_check,
    parallel=False,
    fingerprint=_fingerprint,
)
