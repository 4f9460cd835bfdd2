"""A few records of each published data set's shape, written for these tests."""

from __future__ import annotations

from typing import Any

Records = list[dict[str, Any]]


def _rated(response: str, model: str, ratings: list[str], overall: float) -> dict[str, Any]:
    aspects = ("helpfulness", "honesty", "instruction_following", "truthfulness")
    return {
        "model": model,
        "principle": "helpfulness",
        "custom_system_prompt": "You are helpful.",
        "response": response,
        "critique": "Fine.",
        "overall_score": overall,
        "fine-grained_score": 3.5,
        "annotations": {
            name: {"Rating": rating, "Rationale": f"About {name}."}
            for name, rating in zip(aspects, ratings, strict=True)
        },
    }


ULTRAFEEDBACK: Records = [
    {
        "source": "evol_instruct",
        "instruction": "Name a river.",
        "models": ["small", "large"],
        "completions": [
            _rated("The Rhine.", "small", ["5", "4", "5", "N/A"], 10.0),
            _rated("A river.", "large", ["2", "3", "1", "3"], 10.0),
        ],
        "correct_answers": ["None"],
        "incorrect_answers": ["None"],
    }
]

_ASKED = {"role": "user", "content": "Name a river."}
BINARIZED: Records = [
    {
        "prompt": "Name a river.",
        "prompt_id": "f00d",
        "chosen": [_ASKED, {"role": "assistant", "content": "The Rhine."}],
        "rejected": [_ASKED, {"role": "assistant", "content": "A river."}],
        "messages": [_ASKED, {"role": "assistant", "content": "The Rhine."}],
        "score_chosen": 8.5,
        "score_rejected": 6.0,
    }
]


def _helpsteer(prompt: str, response: str, *ratings: int) -> dict[str, Any]:
    names = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
    return {"prompt": prompt, "response": response, **dict(zip(names, ratings, strict=True))}


TURNS = "Name a river.\n\n<extra_id_1>Assistant\nThe Rhine.\n\n<extra_id_1>User\nA longer one?"
HELPSTEER: Records = [
    _helpsteer("What is 2 + 2?", "4", 4, 4, 4, 0, 0),
    _helpsteer("What is 2 + 2?", "Five.", 0, 0, 3, 0, 1),
    _helpsteer(TURNS, "The Nile.", 3, 4, 4, 1, 0),
    _helpsteer(TURNS, "The Amazon, perhaps.", 4, 3, 4, 1, 1),
    _helpsteer("What is 2 + 2?", "It is four.", 4, 4, 4, 1, 2),
]

HELPSTEER_PREFERENCE: Records = [
    {"prompt": "Hi", "response_1": "Hello.", "response_2": "What?", "preference_strength": -2, "split": "train"},
    {"prompt": TURNS, "response_1": "No.", "response_2": "The Nile.", "preference_strength": 3, "split": "train"},
    {"prompt": "Ho", "response_1": "a", "response_2": "b", "preference_strength": 0, "split": "val"},
]

HELPSTEER3: Records = [
    {
        "domain": "general",
        "language": "english",
        "context": [_ASKED, {"role": "assistant", "content": "The Rhine."}, {"role": "user", "content": "And?"}],
        "response1": "The Nile.",
        "response2": "No.",
        "overall_preference": -1,
    }
]

PKU: Records = [
    {
        "prompt": "How do I open a lock?",
        "response_0": "With a key.",
        "response_1": "Break it.",
        "prompt_source": "here",
        "response_0_source": "small",
        "response_1_source": "large",
        "is_response_0_safe": True,
        "is_response_1_safe": False,
        "response_0_harm_category": {"Theft": False},
        "response_1_harm_category": {"Theft": True},
        "response_0_severity_level": 0,
        "response_1_severity_level": 2,
        "better_response_id": 1,
        "safer_response_id": 0,
        "response_0_sha256": "aa",
        "response_1_sha256": "bb",
    }
]

PKU_QA: Records = [
    {"prompt": "How do I open a lock?", "response": "With a key.", "is_safe": True, "severity_level": 0},
    {"prompt": "How do I open a lock?", "response": "Break it.", "is_safe": False, "severity_level": 2},
]

RESPONSES: Records = [
    {"prompt": "Name a river.", "response": "The Rhine.", "judge": 0.5},
    {"prompt": "Name a river.", "response": "A river.", "judge": 0.25},
]

ALPACA_EVAL: Records = [
    {"dataset": "vicuna", "instruction": "Name a river.", "output": "The Rhine.", "generator": "small"},
    {"dataset": "vicuna", "instruction": "Say hello.", "output": "Hello.", "generator": "small"},
]
ALPACA_EVAL_OTHER: Records = [
    {"dataset": "vicuna", "instruction": "Say hello.", "output": "Hi!", "generator": "large"},
    {"dataset": "vicuna", "instruction": "Name a river.", "output": "", "generator": "large"},
]

ALPACA: Records = [
    {"instruction": "Name a river.", "input": "", "output": "The Rhine."},
    {"instruction": "Translate.", "input": "chat", "output": "cat"},
]

UNPAIRED: Records = [
    {"prompt": "Name a river.", "completion": "The Rhine.", "label": True},
    {"prompt": "Name a river.", "completion": "A river.", "label": False},
    {"prompt": "Say hello.", "completion": "Hello.", "label": True},
]

NECTAR: Records = [
    {
        "prompt": "\n\nHuman: Name a river.\n\nAssistant: ",
        "answers": [
            {"answer": "The Rhine.", "model": "a", "rank": 1.0},
            {"answer": "Water.", "model": "b", "rank": 3.0},
            {"answer": "A river.", "model": "c", "rank": 2.0},
        ],
        "turns": 1,
        "num_responses": 3,
        "source": ["here"],
        "good_natured": True,
    }
]

MESSAGES: Records = [
    {"messages": [{"role": "system", "content": "Be brief."}, _ASKED, {"role": "assistant", "content": "The Rhine."}]},
    {"messages": [_ASKED]},
]

SHAREGPT: Records = [
    {"conversations": [{"from": "human", "value": "Name a river."}, {"from": "gpt", "value": "The Rhine."}]}
]

HH: Records = [
    {
        "chosen": "\n\nHuman: Name a river.\n\nAssistant: The Rhine.",
        "rejected": "\n\nHuman: Name a river.\n\nAssistant: No.",
    }
]

ALL: dict[str, Records] = {
    "hh-rlhf": HH,
    "ultrafeedback": ULTRAFEEDBACK,
    "ultrafeedback-binarized": BINARIZED,
    "helpsteer": HELPSTEER,
    "helpsteer2-preference": HELPSTEER_PREFERENCE,
    "helpsteer3": HELPSTEER3,
    "pku-saferlhf": PKU,
    "pku-qa": PKU_QA,
    "prompt-response": RESPONSES,
    "alpaca-eval": ALPACA_EVAL,
    "alpaca": ALPACA,
    "trl-unpaired": UNPAIRED,
    "nectar": NECTAR,
    "messages": MESSAGES,
    "sharegpt": SHAREGPT,
}
FLAT = (
    "hh-rlhf",
    "helpsteer",
    "helpsteer2-preference",
    "pku-qa",
    "prompt-response",
    "alpaca-eval",
    "alpaca",
    "trl-unpaired",
)
"""Those whose columns are all text and numbers, as a CSV can hold them."""
