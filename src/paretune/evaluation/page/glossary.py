"""What the report's words and figures mean, a sentence each."""

from __future__ import annotations

from paretune.evaluation.charts import escape

WORDS = {
    "Objective": "A named quantity of an answer. Its scores are shown on the policy's saved scale from 0 (worst) to 1 "
    "(best), also where less of the raw quantity is better.",
    "Profile": "A value from 0 to 1 for each objective: a trade-off. The sensed profile is what a policy predicts from "
    "the prompt alone; the target profile is the one the data holds to be right for the prompt.",
    "Condition": "What the policy was given when it answered. Its natural one is the sensed profile where it has a "
    "sensing head, the centre of the weights where it takes weights and they were asked for, else nothing.",
    "Interval": "A 95% percentile bootstrap interval over prompts. A difference is shown where it excludes zero.",
    "Distance to target": "Mean over objectives of how far an answer's scores are from the target profile; less is "
    "better.",
    "Win, tie, loss": "An answer against another answer to the same prompt in one objective; within the stated margin "
    "is a tie. Jointly, a win is at least as good in every objective and better in one.",
    "Mean win rate": "Mean over objectives of wins plus half the ties. Wins alone leaves ties out, as the "
    "SGA paper counts.",
    "Front": "The points that no other point equals or beats in all objectives while beating it in one.",
    "Hypervolume": "The volume of what is better than the reference point and reached by some point of the front in "
    "every objective at once; more is better.",
    "Sparsity": "Mean squared gap between neighbours on the front, summed over objectives; less is evener cover.",
    "Spacing": "Standard deviation of the distance from each front point to its nearest other one; 0 is even.",
    "Inner product": "Mean over prompts of the answer's scores weighted by the weights asked for; more is better.",
    "Control": "Spearman is the rank correlation of requested and obtained values, MAE their mean absolute difference. "
    "Control accuracy is how often a completion is likelier under its own profile than under another's.",
    "Calibration": "A sensed 80% interval should hold 80% of the targets. R² compares the head's squared error with "
    "that of the mean of these prompts; 0 is no better than it.",
    "Held-out judge": "A reward that training did not use. A gain on the trained reward without one on the held-out "
    "reward suggests that the reward was learnt rather than what it stands for.",
    "p, adjusted": "The chance of a difference this large if there were none, after Holm's correction over all tests "
    "of the same figure.",
    "Echo": "An answer that repeats the text by which the profile was put into the prompt.",
}


def glossary() -> str:
    """The list of definitions, as HTML."""
    items = "".join(f"<div><dt>{escape(word)}</dt><dd>{escape(means)}</dd></div>" for word, means in WORDS.items())
    return f'<dl class="glossary">{items}</dl>'
