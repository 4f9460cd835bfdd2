"""metrics.json as `paretune evaluate` writes it for several policies, made up: no model runs, no section is empty.

Names, answers and notes can hold hostile text, so that a page made of it shows whether text stays text.
"""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

OBJECTIVES = ("helpful", "harmless", "brevity")
POLICIES = ("sga", "dpo", "ric", "modpo")
CONDITIONS = ("oracle", "sensed", "shuffled", "mean", "ones", "none")
HOSTILE = '</script><script>window.broken=1</script><img src=x onerror="window.broken=2"><!-- <b>bold</b> & "\'\u2028'
PROMPTS = 120


def estimate(value: float | None, half: float = 0.03, why: str = "") -> dict[str, Any]:
    """An estimate with a symmetric interval; undefined with a reason for `None`."""
    if value is None:
        return {"value": None, "low": None, "high": None, "n": 0, "why": why}
    return {"value": value, "low": value - half, "high": value + half, "n": PROMPTS}


def _shares(draw: random.Random, good: float) -> dict[str, Any]:
    win = round(min(0.9, max(0.05, good + draw.uniform(-0.05, 0.05))), 3)
    tie = round((1 - win) * 0.2, 3)
    return {"win": estimate(win), "tie": estimate(tie), "loss": estimate(round(1 - win - tie, 3))}


def _wins(draw: random.Random, good: float) -> dict[str, Any]:
    return {"objectives": {name: _shares(draw, good) for name in OBJECTIVES}, "joint": _shares(draw, good - 0.2)}


def _values(draw: random.Random, good: float) -> dict[str, float]:
    return {name: round(good + draw.uniform(-0.2, 0.2), 4) for name in OBJECTIVES}


def _marked(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The points with `on_front` told by the definition."""

    def beaten(own: dict[str, float], other: dict[str, float]) -> bool:
        return all(other[k] >= own[k] for k in own) and any(other[k] > own[k] for k in own)

    return [
        {**point, "on_front": not any(beaten(point["values"], other["values"]) for other in points)} for point in points
    ]


def _front(points: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "objectives": list(OBJECTIVES),
        "reference": dict.fromkeys(OBJECTIVES, 0.0),
        "reference_rule": "0 in every objective, the worst end of the normalised scale",
        "prompts": PROMPTS,
        "points": _marked(points),
        "hypervolume": estimate(0.241),
    } | more


def _condition(draw: random.Random, good: float) -> dict[str, Any]:
    return {
        "distance": estimate(0.5 - good / 2),
        "scores": {name: estimate(value) for name, value in _values(draw, good).items()},
        "words": estimate(61.5, 4),
        "tokens": estimate(83.2, 6),
        "finished": estimate(0.93),
        "echoes": estimate(0.01, 0.01),
        "empty": 0,
        "cost": {"seconds": 41.2, "tokens": 9984.0, "tokens_per_second": 242.3},
    }


def _head(draw: random.Random) -> dict[str, Any]:
    def quality(value: float) -> dict[str, Any]:
        return {"r2": estimate(value), "mae": estimate(0.18), "spearman": estimate(value + 0.2)}

    out = {}
    for name in OBJECTIVES:
        flat = {"r2": estimate(0.0), "mae": estimate(0.21), "spearman": estimate(None, why="the guess is constant")}
        held = {"level": 0.8, "coverage": estimate(draw.uniform(0.7, 0.85), 0.06), "width": estimate(0.5)}
        out[name] = {"constant": flat, "head": quality(0.31), "probe": quality(0.12), "interval": held}
    return out


def _sweep(draw: random.Random, good: float) -> list[dict[str, Any]]:
    asked = [{name: float(name == each) for name in OBJECTIVES} for each in OBJECTIVES]
    asked += [{first: 0.5, second: 0.5} for first, second in combinations(OBJECTIVES, 2)]
    return [
        {
            "name": " + ".join(f"{name} {value:g}" for name, value in weights.items() if value),
            "kind": "weights",
            "asked": weights,
            "scores": {name: estimate(value) for name, value in _values(draw, good).items()},
            "wins": _wins(draw, good),
            "multi_win": estimate(good),
            "inner_product": estimate(good),
            "distance_to_asked": None,
            "words": estimate(60.0, 5),
            "cost": {"seconds": 40.0, "tokens": 9000.0, "tokens_per_second": 225.0},
        }
        for weights in asked
    ]


def policy(name: str, good: float, *, head: bool, sweep: bool) -> dict[str, Any]:
    """What metrics.json holds of one policy; `good` in [0, 1] is how well it does."""
    draw = random.Random(name)
    conditions = CONDITIONS if head else ("none",)
    natural = "sensed" if head else "none"
    ran = {each: _condition(draw, good - 0.04 * i) for i, each in enumerate(conditions)}
    gaps = {each: estimate(0.03 * i - 0.01) for i, each in enumerate(conditions) if each != "sensed"} if head else {}
    swept = _sweep(draw, good) if sweep else []
    curve = [{"requested": v, "obtained": estimate(0.3 + 0.4 * v)} for v in (0.1, 0.3, 0.5, 0.7, 0.9)]
    control = {
        each: {"prompts": 16, "spearman": estimate(0.71), "spearman_within": estimate(0.64), "mae": estimate(0.14),
               "curve": curve}
        for each in OBJECTIVES
    }  # fmt: skip
    points = [{"name": each, "values": {k: s["value"] for k, s in ran[each]["scores"].items()}} for each in conditions]
    own = [{"name": natural, "kind": "natural", "values": {k: s["value"] for k, s in ran[natural]["scores"].items()}}]
    own += [
        {"name": p["name"], "kind": "weights", "values": {k: s["value"] for k, s in p["scores"].items()}} for p in swept
    ]
    verdict = {
        "helps": True if head else None,
        "headline": "Sensing helps on this data." if head else "This policy has no sensing head.",
        "text": "Answers under the sensed profile are closer to the target than under all four rivals.",
        "limits": ["The head is a limit: with the oracle profile the policy comes closer, by 0.031."] if head else [],
    }
    gain, held = estimate(0.42, 0.1), estimate(-0.05, 0.1)
    return {
        "folder": f"runs/{name}",
        "method": name,
        "base": "SmolLM2-135M",
        "scored": list(OBJECTIVES),
        "unscored": {},
        "natural": natural,
        "test": {"prompts": PROMPTS, "source": "the test part of its own data", "targets": "chosen", "dropped_ties": 3},
        "verdict": verdict,
        "conditions": ran,
        "differences": gaps,
        "head": _head(draw) if head else None,
        "chosen": {"scores": {each: estimate(0.5) for each in OBJECTIVES}, "distance": estimate(0.24)},
        "wins": {each: _wins(draw, good - 0.04 * i) for i, each in enumerate(conditions)},
        "multi_win": {each: estimate(good) for each in conditions},
        "win_only": {each: estimate(good - 0.05) for each in conditions},
        "closer_than_chosen": None,
        "front": _front(points),
        "front_set": _front(own, sparsity=0.0123, spacing=0.0456, of="sweep" if sweep else "natural"),
        "sweep": swept,
        "cost": {"train_seconds": 612.4, "train_tokens": 1_250_000, "train_steps": 240, "peak_memory_mib": None,
                 "models_at_inference": 1 if head else 3, "adapters": 1, "tokens_per_second": 242.3},
        "held_out": [
            {"objective": "helpful", "trained_spec": "hf:trained", "judge_spec": "judge:other", "gain_trained": gain,
             "gain_held_out": held, "unit": "standard deviations of the data's completions", "against": "base model",
             "claim": f"{name} gained on the trained reward of helpful only.", "flag": True}
        ],
        "control": control if head else None,
        "conditioned_on": "values" if head else None,
        "control_accuracy": (estimate(0.72) | {"left_out": 2}) if head else None,
        "notes": [f"Near-duplicates could not be looked for in {name}'s training data."],
    }  # fmt: skip


def metrics(names: tuple[str, ...] = POLICIES, text: str = "An answer in a few words.") -> dict[str, Any]:
    """The whole of metrics.json; `text` becomes the example of every point."""
    policies = {name: policy(name, 0.62 - 0.05 * i, head=i == 0, sweep=i != 1) for i, name in enumerate(names)}
    settings = {"conditions": None, "objectives": None, "max_prompts": 120, "seed": 0, "split": "test", "margin": 0.01,
                "bootstrap": 1000, "weights": ["grid"], "reference": None, "card": False}  # fmt: skip
    return {
        "format": 1,
        "data": "rows.jsonl",
        "settings": settings,
        "versions": {"python": "3.11.2", "paretune": "0.1.0", "torch": "2.13.0"},
        "command": "paretune evaluate runs/sga runs/dpo --data rows.jsonl --out report --seed 0",
        "policies": policies,
        "comparison": _comparison(policies, text) if len(policies) > 1 else None,
    }


def _comparison(policies: dict[str, Any], text: str) -> dict[str, Any]:
    points = []
    for name, own in policies.items():
        for point in own["front_set"]["points"]:
            shown = {"prompt": "How do I bake bread?", "answer": f"{name}: {text}"}
            label = name if point["kind"] == "natural" else point["name"]
            points.append({**point, "name": label, "policy": name, "example": shown})
    pairs = list(combinations(policies, 2))
    draw = random.Random(0)
    return {
        "objectives": list(OBJECTIVES),
        "prompts": PROMPTS,
        "same_prompts": True,
        "conditions": {name: own["natural"] for name, own in policies.items()},
        "policies": {
            name: {
                "condition": own["natural"], "multi_win": own["multi_win"][own["natural"]],
                "win_only": own["win_only"][own["natural"]], "joint": own["wins"][own["natural"]]["joint"],
                "distance": own["conditions"][own["natural"]]["distance"], "words": estimate(61.5, 4),
                "hypervolume": estimate(0.3 - 0.03 * i), "sparsity": own["front_set"]["sparsity"],
                "spacing": own["front_set"]["spacing"],
                "inner_product": estimate(0.6 - 0.04 * i) if own["sweep"] else None,
                "points": len(own["front_set"]["points"]),
            }
            for i, (name, own) in enumerate(policies.items())
        },
        "head_to_head": [
            {"first": first, "second": second, "multi_win": estimate(0.5 + 0.04 * i, 0.05), **_wins(draw, 0.5)}
            for i, (first, second) in enumerate(pairs)
        ],
        "tests": [
            {"first": first, "second": second, "figure": figure, "difference": estimate(0.02 * i, 0.03),
             "p": 0.2 / (i + 1) ** 3, "p_adjusted": min(1.0, 0.8 / (i + 1) ** 3), "significant": i > 2,
             "claim": f"{first}'s {figure} is{'' if i > 2 else ' not shown to be'} higher than {second}'s."}
            for figure in ("multi_win", "hypervolume")
            for i, (first, second) in enumerate(pairs)
        ],
        "front": _front(points),
        "claims": ["sga is first in mean win rate, shown against ric and modpo.", "No difference to dpo is shown."],
        "notes": ["All scores are on the scales of sga."],
    }  # fmt: skip


def samples(names: tuple[str, ...] = POLICIES, text: str = "An answer in a few words.") -> dict[str, Any]:
    """Two sample prompts of each policy."""
    out = {}
    for i, name in enumerate(names):
        conditions = ("sensed", "none", "oracle") if i == 0 else ("none",)
        out[name] = [
            {
                "prompt": [{"role": "user", "content": asked}],
                "sensed": dict.fromkeys(OBJECTIVES, 0.6) if i == 0 else None,
                "interval": {each: [0.4, 0.85] for each in OBJECTIVES} if i == 0 else None,
                "target": dict.fromkeys(OBJECTIVES, 0.7),
                "wished": dict.fromkeys(OBJECTIVES, 0.7),
                "answers": [
                    {"condition": each, "text": f"{text} ({each}, {name})", "finished": True, "distance": 0.12,
                     "values": dict.fromkeys(OBJECTIVES, 0.55)}
                    for each in conditions
                ],
            }
            for asked in ("How do I bake bread?", "Write a long story about a lighthouse keeper and the sea.")
        ]  # fmt: skip
    return out
