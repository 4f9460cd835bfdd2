"""The embedded default: a small model, prompts written for this project with the profile each of them wants, scored
completions, and the run that shows the whole loop."""

from paretune.demo.model import demo_model
from paretune.demo.run import DemoResult, run

__all__ = ["DemoResult", "demo_model", "run"]
