"""`paretune demo`: the whole loop on the embedded default; a verdict, examples and the next commands end it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paretune.data import read_rows, store_objectives, stored_objectives, write_rows
from paretune.demo.model import demo_model
from paretune.errors import InputError
from paretune.evaluation import evaluate
from paretune.methods import TrainResult, train
from paretune.policy import Generation, load_policy
from paretune.profile import Profile
from paretune.progress import NO_PROGRESS, Progress

HERE = Path(__file__).parent
SCORED = HERE / "scored.jsonl.gz"
MAX_NEW_TOKENS = 64  # the demo's completions were sampled up to this length
FAST_ROWS = 200
SETTINGS = ("preset=robust", "targets=wanted", "epochs=3", "test=0.2", "lora_layers=16", "micro_tokens=3072")
FAST_SETTINGS = (*SETTINGS, "epochs=1")
EXAMPLES = (
    "What is the capital of Portugal?",
    "My grandmother died on Sunday. What should I write to my mother?",
    "Tell me a joke about penguins!",
)


@dataclass(frozen=True)
class Example:
    """A prompt with what was sensed and the answers under it and under pins that turn it round."""

    prompt: str
    sensed: Profile
    answer: str
    pins: Profile
    pinned_answer: str


@dataclass(frozen=True)
class DemoResult:
    """Where policy and report are, the verdict, three examples and the time it took."""

    policy: str
    report: str
    model: str
    data: str
    trained: TrainResult
    headline: str
    verdict: str
    distances: dict[str, float]
    examples: list[Example]
    seconds: float
    fast: bool

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return asdict(self)

    def summary(self) -> str:
        """What the command line prints at the end."""
        lines = [
            "",
            self.headline,
            self.verdict,
            "",
            "Mean distance of the answers to the wanted profile, by condition:",
        ]
        lines += [f"  {name:<9}{value:.3f}" for name, value in self.distances.items()]
        for each in self.examples:
            lines += [
                "",
                f"> {each.prompt}",
                f"  sensed    {_profile(each.sensed)}",
                f"  answer    {_one_line(each.answer)}",
            ]
            lines += [f"  pinned    {_profile(each.pins)}", f"  answer    {_one_line(each.pinned_answer)}"]
        if self.fast:
            lines += ["", "This was --fast: fewer rows and steps. The full demo is the one to judge by."]
        lines += [
            "",
            f"Done in {self.seconds / 60:.1f} minutes. Next:",
            f"  open {shlex.quote(self.report)}/report.html",
        ]
        lines += [f'  paretune sense {shlex.quote(self.policy)} --prompt "How do vaccines work?"']
        lines += [f'  paretune generate {shlex.quote(self.policy)} --prompt "How do vaccines work?" --pin brevity=0.95']
        places = f"--data {shlex.quote(self.data)} --model {shlex.quote(self.model)}"
        lines += [f"  paretune train sga {places} --out runs/mine --set epochs=3"]
        return "\n".join(lines)


def _profile(profile: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in profile.items())


def _one_line(text: str, width: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def run(out: Path | str, *, fast: bool = False, seed: int = 0, progress: Progress = NO_PROGRESS) -> DemoResult:
    """Train `sga` on the demo's scored rows, evaluate it, and answer three prompts; `fast` uses a third of the rows.

    Leaves `policy/`, `report/` and `data/` below `out`; what an earlier demo left there is replaced.
    """
    out = Path(out)
    start = time.monotonic()
    with progress("load the demo's model", 1) as task:
        model = str(demo_model())
        task.advance()
    data = _copy_data(out / "data", FAST_ROWS if fast else None)
    trained = train(
        "sga",
        data,
        model,
        out / "policy",
        settings=(*(FAST_SETTINGS if fast else SETTINGS), f"seed={seed}"),
        overwrite=True,
        restart=True,  # what was broken off here may have been a demo with other settings
        progress=progress,
    )
    metrics = evaluate(
        [out / "policy"],
        data,
        out / "report",
        max_new_tokens=MAX_NEW_TOKENS,
        seed=seed,
        overwrite=True,
        progress=progress,
        control_prompts=8 if fast else 16,
    )
    told = next(iter(metrics["policies"].values()))
    return DemoResult(
        policy=str(out / "policy"),
        report=str(out / "report"),
        model=model,
        data=str(data),
        trained=trained,
        headline=told["verdict"]["headline"],
        verdict=told["verdict"]["text"],
        distances={name: each["distance"]["value"] for name, each in told["conditions"].items()},
        examples=_examples(out / "policy", seed),
        seconds=round(time.monotonic() - start, 1),
        fast=fast,
    )


def _copy_data(folder: Path, rows: int | None) -> Path:
    """The demo's scored rows where the user can look at them; the first `rows` in an order that mixes the kinds."""
    if not SCORED.is_file():
        raise InputError(
            "the demo's data is not in this installation; install paretune from a built package", file=SCORED
        )
    path = folder / "scored.jsonl"
    kept = read_rows(SCORED)
    if rows is not None:
        step = len(kept) / rows
        kept = [kept[int(i * step)] for i in range(rows)]
    write_rows(path, kept)
    store_objectives(path, stored_objectives(SCORED) or [])
    return path


def _examples(folder: Path, seed: int) -> list[Example]:
    policy = load_policy(folder).fuse()
    prompts = [[{"role": "user", "content": text}] for text in EXAMPLES]
    sensed = policy.generate(prompts, max_new_tokens=MAX_NEW_TOKENS, seed=seed)
    pins = [_turned(each) for each in sensed]
    pinned = policy.generate(prompts, pins=pins, max_new_tokens=MAX_NEW_TOKENS, seed=seed)
    return [
        Example(text, _rounded(own.sensed or {}), own.text, pin, other.text)
        for text, own, pin, other in zip(EXAMPLES, sensed, pins, pinned, strict=True)
    ]


def _turned(sensed: Generation) -> Profile:
    """Pins that turn the sensed brevity round."""
    brevity = (sensed.sensed or {}).get("brevity", 0.5)
    return {"brevity": 0.05 if brevity > 0.5 else 0.95}


def _rounded(profile: Profile) -> Profile:
    return {name: round(value, 3) for name, value in profile.items()}
