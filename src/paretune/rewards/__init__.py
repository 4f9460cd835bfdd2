"""Rewards: what measures objectives, and `score`."""

from paretune.rewards.base import Reward, RewardKind
from paretune.rewards.score import score, score_rows, score_texts
from paretune.rewards.spec import build_reward, can_score_new, list_rewards, parse_objective, register_reward
from paretune.rewards.summary import ObjectiveSummary, ScoreSummary

__all__ = [
    "ObjectiveSummary",
    "Reward",
    "RewardKind",
    "ScoreSummary",
    "build_reward",
    "can_score_new",
    "list_rewards",
    "parse_objective",
    "register_reward",
    "score",
    "score_rows",
    "score_texts",
]
