"""Reward models on data that nobody here wrote: one command, one row of a table of held-out figures.

    python benchmarks/reward_data.py hh FILE --out runs/reward-hh              HH-RLHF pairs: accuracy
    python benchmarks/reward_data.py alpaca_judge FILE --out runs/reward-judge AlpacaEval rows with a `judge` score
    python benchmarks/reward_data.py pyrit [FOLDER] --out runs/reward-harm     human harm scores (pip: pyrit==1.1.0)
    python benchmarks/reward_data.py chitchat [FILE] --out runs/reward-chat    human ratings of chats
                                                                               (pip: chitchat-dataset==0.9.0)

Without FILE the installed package's data is read (the package is found, not imported). `--rows` takes the first so many
prompts in an order drawn by a fixed seed, `--completions` so many answers of each, `--max-tokens` cuts answers (chats
keep their beginning). Training is `paretune.train_reward_model`; settings after `--set` go to it. A fifth of the
prompts is held out, and on it the model stands beside

    length    pairs: the better of "longer wins" and "shorter wins"; ratings: the number of words
    probe     a linear model on the frozen sentence encoder of `embed:relevance` (question and answer; cut at 256
              tokens), its ridge chosen on a fifth of the training prompts: logistic on differences, or least squares

with 95% bootstrap intervals over prompts, and of the differences too. Spearman's correlation is given over all answers,
within prompts where they have several, and with length held fixed (partial rank correlation).
"""

from __future__ import annotations

import argparse
import csv
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import run

import paretune
from paretune.bootstrap import Bootstrap, Estimate, Floats, weighted_spearman
from paretune.cli.progress import bars
from paretune.data import Completion, Row, split_rows
from paretune.demo import demo_model
from paretune.errors import InputError
from paretune.files import read_json
from paretune.policy.backbone import load_backbone
from paretune.reward_model.config import RewardConfig
from paretune.reward_model.folder import load_for_scoring
from paretune.reward_model.supervision import rated, stated_pairs
from paretune.reward_model.validate import mean_over_pairs
from paretune.rewards.embed import RelevanceReward

RIDGES = (1e-3, 1e-2, 1e-1, 1.0)
VALIDATION = 0.2


@dataclass(frozen=True)
class Task:
    """A data set: how it is read, what it teaches, how answers are cut."""

    read: Callable[[Path | None], list[Row]]
    objectives: tuple[str, ...]
    pairs: bool
    max_tokens: int
    settings: tuple[str, ...] = ()


def main() -> None:
    """Prepare, train, compare; print what came of it."""
    parser = argparse.ArgumentParser(description="reward models on real data")
    parser.add_argument("kind", choices=tuple(TASKS))
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", help="base model (default: the demo's)")
    parser.add_argument("--rows", type=int, default=10**9, help="prompts")
    parser.add_argument("--completions", type=int, default=8, help="answers kept a prompt")
    parser.add_argument("--max-tokens", type=int, default=0, help="longest answer (default: the task's)")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    task = TASKS[arguments.kind]
    model = arguments.model or str(demo_model())
    rows = prepare(task.read(arguments.file), task, model, arguments)
    data = arguments.out / "rows.jsonl"
    paretune.write_rows(data, rows)
    trained = paretune.train_reward_model(
        data,
        model,
        arguments.out / "reward",
        objectives=task.objectives,
        source="pairs" if task.pairs else "ratings",
        preference=task.objectives[0].removeprefix("-"),
        settings=[f"validation={VALIDATION}", "max_length=768", *task.settings, *arguments.settings],
        overwrite=True,
        progress=bars(),
    )
    found = compare(rows, task, arguments.out / "reward")
    if arguments.json:
        out = {"kind": arguments.kind, "trained": trained.metrics, "dropped": trained.dropped, "held_out": found}
        print(json.dumps(out))
    else:
        print(f"{arguments.kind}: {trained.metrics['train_prompts']} prompts, {trained.seconds / 60:.1f} minutes")
        print("\n".join(markdown(found)))


def prepare(rows: Sequence[Row], task: Task, model: str, arguments: argparse.Namespace) -> list[Row]:
    """A drawn subset of the rows, with a few cut answers each."""
    _, tokenizer = load_backbone(model)
    most = arguments.max_tokens or task.max_tokens
    chosen = list(rows)
    random.Random("rows").shuffle(chosen)
    out = []
    for row in chosen[: arguments.rows]:
        places = list(range(len(row.completions)))
        random.Random(f"{row.id}:completions").shuffle(places)
        kept = [row.completions[k] for k in sorted(places[: arguments.completions])]
        out.append(replace(row, completions=tuple(_cut(each, tokenizer, most) for each in kept)))
    return out


def _cut(completion: Completion, tokenizer: Any, most: int) -> Completion:
    ids = tokenizer(completion.text, add_special_tokens=False)["input_ids"]
    if len(ids) <= most:
        return completion
    return replace(completion, text=tokenizer.decode(ids[:most], skip_special_tokens=True))


# --- the data -------------------------------------------------------------------------------------------------------


def read_file(file: Path | None) -> list[Row]:
    """Rows of a file that the reader knows."""
    if file is None:
        raise InputError("this data comes with no package: name its file")
    return paretune.read_rows(file)


def installed(package: str, *parts: str) -> Path:
    """A path inside an installed package, which is not imported."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder).joinpath(*parts)
        if path.exists():
            return path
    raise InputError(f"the package '{package}' is not installed, and no path is given")


def read_pyrit(folder: Path | None) -> list[Row]:
    """Answers with the mean of their human harm scores (0 to 1), grouped by question."""
    folder = folder or installed("pyrit", "datasets", "scorer_evals", "harm")
    answers: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob("*.csv")):
        if path.name.startswith("mini_"):  # a part of another file
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        for record in csv.DictReader(line for at, line in enumerate(lines) if at or not line.startswith("#")):
            scores = [float(value) for key, value in record.items() if key and key.startswith("human_score") and value]
            if record.get("data_type", "text") == "text" and record["objective"].strip() and scores:
                given = answers.setdefault(record["objective"].strip(), {})
                given.setdefault(record["assistant_response"], sum(scores) / len(scores))
    return [
        Row(_user(prompt), tuple(Completion(text, {"harm": score}) for text, score in given.items()), id=f"harm-{at}")
        for at, (prompt, given) in enumerate(answers.items())
    ]


def read_chitchat(file: Path | None) -> list[Row]:
    """Rated chats of two people: the topic is the prompt, the whole chat the answer."""
    file = file or installed("chitchat_dataset", "dataset.json")
    rows = []
    for key, chat in json.loads(file.read_text(encoding="utf-8")).items():
        turns = [(turn[0]["sender"], " ".join(each["text"] for each in turn)) for turn in chat["messages"] if turn]
        ratings = chat.get("ratings") or {}
        if len({sender for sender, _ in turns}) < 2 or not {"witty", "upbeat", "interesting"} <= ratings.keys():
            continue
        first = turns[0][0]
        text = "\n".join(f"{'A' if sender == first else 'B'}: {said}" for sender, said in turns)
        scores = {name: float(ratings[name]) for name in ("witty", "upbeat", "interesting")}
        rows.append(Row(_user(str(chat["prompt"])), (Completion(text, scores),), id=key))
    return rows


def _user(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


TASKS = {
    "hh": Task(read_file, ("harmless",), pairs=True, max_tokens=128),
    "alpaca_judge": Task(read_file, ("judge",), pairs=False, max_tokens=256),
    "pyrit": Task(read_pyrit, ("-harm",), pairs=False, max_tokens=256, settings=("epochs=3",)),
    "chitchat": Task(read_chitchat, ("witty", "upbeat", "interesting"), pairs=False, max_tokens=384),
}


# --- held-out figures -------------------------------------------------------------------------------------------------


def compare(rows: Sequence[Row], task: Task, folder: Path) -> dict[str, dict[str, Any]]:
    """Held-out figures by objective: model, length and probe on the same answers."""
    # that of training, whatever --set says
    split = split_rows(rows, **read_json(folder / "reward.json")["data"]["split"])
    if not split.validation:
        raise InputError("nothing was held out, so there is nothing to compare", field="validation")
    encoder = RelevanceReward()
    model = load_for_scoring(folder)
    held = [(row, each) for row in split.validation for each in row.completions]
    rewards = model.score([row.prompt for row, _ in held], [each.text for _, each in held], progress=bars())
    train_ND, held_ND = (embed(encoder, part) for part in (split.train, split.validation))
    out = {}
    for name in (each.removeprefix("-") for each in task.objectives):
        given = np.array([each[name] for each in rewards])
        how = of_pairs if task.pairs else of_ratings
        told = how(name, split.train, split.validation, train_ND, held_ND, given)
        out[name] = {key: value.to_dict() for key, value in told.items()}
    return out


def embed(encoder: RelevanceReward, rows: Sequence[Row]) -> Floats:
    """Vectors [N, D] of last question and answer, of all answers in the rows' order."""
    texts = [f"{row.text}\n{each.text}" for row in rows for each in row.completions]
    return np.asarray(encoder.embed(texts).double())


def of_pairs(
    name: str, train: Sequence[Row], held: Sequence[Row], train_ND: Floats, held_ND: Floats, given: Floats
) -> dict[str, Estimate]:
    """Accuracies on held-out pairs."""
    pairs, prompts = pair_places(name, held)
    learnt, groups = pair_places(name, train)
    weights = probe(train_ND[learnt[:, 0]] - train_ND[learnt[:, 1]], None, groups)
    words = np.array([len(each.text.split()) for row in held for each in row.completions], dtype=float)
    sides = {"model": given, "probe": held_ND @ weights, "length": words}
    right = {key: (np.sign(value[pairs[:, 0]] - value[pairs[:, 1]]) + 1) / 2 for key, value in sides.items()}
    if right["length"].mean() < 0.5:
        right["length"] = 1 - right["length"]

    def mean(values: Floats) -> Estimate:
        return mean_over_pairs(values, prompts, Bootstrap(1000))

    out = {f"accuracy, {key}": mean(values) for key, values in right.items()}
    return out | {f"model - {key}": mean(right["model"] - right[key]) for key in ("length", "probe")}


def pair_places(name: str, rows: Sequence[Row]) -> tuple[Any, Floats]:
    """(winner, loser) [P, 2] as places among all answers, and the number of each pair's row [P]."""
    config, start, pairs, prompts = RewardConfig(preference=name), 0, list[tuple[int, int]](), list[int]()
    for n, row in enumerate(rows):
        for _, winner, loser in stated_pairs(row, config):
            if row.completions[winner].text != row.completions[loser].text:
                pairs.append((start + winner, start + loser))
                prompts.append(n)
        start += len(row.completions)
    return np.array(pairs).reshape(-1, 2), np.array(prompts, dtype=float)


def of_ratings(
    name: str, train: Sequence[Row], held: Sequence[Row], train_ND: Floats, held_ND: Floats, given: Floats
) -> dict[str, Estimate]:
    """Rank correlations with held-out ratings."""
    at, truth, prompt = rating_places(name, held)
    learnt, ratings, groups = rating_places(name, train)
    weights = probe(train_ND[learnt], ratings, groups)
    words = np.array([len(each.text.split()) for row in held for each in row.completions], dtype=float)[at]
    sides = {"model": given[at], "probe": (held_ND @ weights)[at], "length": words}
    bootstrap, (numbers, codes) = Bootstrap(1000), np.unique(prompt, return_inverse=True)

    def over(statistic: Callable[[Floats], Floats]) -> Estimate:
        return bootstrap.estimate(lambda drawn: statistic(drawn[:, codes]), len(numbers), "it is constant")

    out = {f"Spearman, {key}": over(lambda w, v=value: weighted_spearman(truth, v, w)) for key, value in sides.items()}
    for key in ("model", "probe"):
        value = sides[key]
        out[f"Spearman given length, {key}"] = over(lambda w, v=value: partial_spearman(truth, v, words, w))
    out["model - probe"] = over(
        lambda w: weighted_spearman(truth, sides["model"], w) - weighted_spearman(truth, sides["probe"], w)
    )
    for key, value in sides.items():
        out[f"Spearman within prompts, {key}"] = bootstrap.mean(
            [within(truth[codes == n], value[codes == n]) for n in range(len(numbers))]
        )
    return out


def rating_places(name: str, rows: Sequence[Row]) -> tuple[Any, Floats, Floats]:
    """Places of rated answers among all, their ratings, and the number of each one's row."""
    start, places, values, prompts = 0, list[int](), list[float](), list[str]()
    for row in rows:
        for k, value in rated(row, name):
            places.append(start + k)
            values.append(value)
            prompts.append(row.text)
        start += len(row.completions)
    return np.array(places), np.array(values), np.unique(prompts, return_inverse=True)[1].astype(float)


def within(truth: Floats, guess: Floats) -> float:
    """A prompt's own rank correlation; NaN where there is none."""
    return float(weighted_spearman(truth, guess, np.ones((1, len(truth))))[0]) if len(truth) > 1 else float("nan")


def partial_spearman(one: Floats, two: Floats, fixed: Floats, weights: Floats) -> Floats:
    """Rank correlation [B] of two vectors with a third held fixed."""
    ab, ac, bc = (weighted_spearman(x, y, weights) for x, y in ((one, two), (one, fixed), (two, fixed)))
    spread = np.sqrt(np.clip((1 - ac**2) * (1 - bc**2), 0, None))
    return np.where(spread > 1e-9, (ab - ac * bc) / np.where(spread > 1e-9, spread, 1), np.nan)


def probe(features_ND: Floats, targets_N: Floats | None, groups: Floats) -> Floats:
    """Weights [D] of ridge regression on the targets, or of logistic regression that every row be positive.

    The ridge is the best on the last fifth of the groups; then all is fitted with it.
    """
    late = groups >= np.quantile(groups, 0.8)
    best, most = RIDGES[0], -np.inf
    for ridge in RIDGES if late.any() and not late.all() else ():
        early = targets_N[~late] if targets_N is not None else None
        guess = features_ND[late] @ _fit(features_ND[~late], early, ridge)
        good = within(targets_N[late], guess) if targets_N is not None else float((guess > 0).mean())
        if good > most:
            best, most = ridge, good
    return _fit(features_ND, targets_N, best)


def _fit(features_ND: Floats, targets_N: Floats | None, ridge: float) -> Floats:
    count, width = features_ND.shape
    if targets_N is not None:
        centred = features_ND - features_ND.mean(0)
        gram = centred.T @ centred / count + ridge * np.eye(width) / width
        return np.asarray(np.linalg.solve(gram, centred.T @ (targets_N - targets_N.mean()) / count))
    x = torch.tensor(features_ND)
    weights = torch.zeros(width, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -torch.nn.functional.logsigmoid(x @ weights).mean() + ridge / width * weights.square().sum() / 2
        loss.backward()
        return loss

    optimizer.step(closure)
    return weights.detach().numpy()


def markdown(found: dict[str, dict[str, Any]]) -> list[str]:
    """A table of the figures: a figure a line, an objective a column."""
    names = list(found)
    lines = [f"| held out | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for key in found[names[0]]:
        lines.append(f"| {key} | {' | '.join(_cell(found[name][key]) for name in names)} |")
    return lines


def _cell(value: dict[str, Any]) -> str:
    if value["value"] is None:
        return "-"
    interval = f" [{value['low']:.3f}, {value['high']:.3f}]" if value["low"] is not None else ""
    return f"{value['value']:.3f}{interval} ({value['n']} prompts)"


if __name__ == "__main__":
    run(main)
