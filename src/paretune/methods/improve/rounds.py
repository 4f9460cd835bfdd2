"""One round after another: sample, score, keep, train on, validate, and decide.

Each stage leaves a file in the round's folder and is not done again when it is there. Models are loaded one at a time:
the policy for its answers, the rewards for the scores, the policy again for its training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paretune.data import Row, prompt_key, read_rows, write_rows
from paretune.data.rows import Completion
from paretune.data.split import Split
from paretune.files import file_digest, read_json, write_json
from paretune.methods.improve.answers import ASKED, Plan, write_answers
from paretune.methods.improve.gain import compare, distances, front_of
from paretune.methods.improve.keep import Mixer, Mixture, Pool, add_to_pool
from paretune.methods.improve.options import ImproveOptions
from paretune.methods.improve.source import Source, drawn, let_go
from paretune.methods.improve.work import Work
from paretune.methods.prepare import Prepared
from paretune.methods.train import train_on
from paretune.policy import load_policy
from paretune.policy.engine import Sampling
from paretune.profile import Profile
from paretune.progress import Progress
from paretune.rewards import score
from paretune.tracking import Report
from paretune.training.guards import DivergedError

SAMPLES, SCORED, MIXTURE, POLICY, ACCOUNT = "samples.jsonl", "scored.jsonl", "mixture.jsonl", "policy", "round.json"
ANSWERS, VALIDATED = "answers.jsonl", "validated.jsonl"


class Rounds:
    """The rounds of one call. `current` is the policy folder that the next one starts from."""

    def __init__(
        self,
        source: Source,
        options: ImproveOptions,
        work: Work,
        *,
        report: Report,
        force: bool = False,
        progress: Progress,
        note: Callable[[str], None],
    ) -> None:
        self.source, self.options, self.work, self.report = source, options, work, report
        self.force, self.progress, self.note = force, progress, note
        self.current = source.folder
        self.validated = work.part("start") / VALIDATED
        self.known: Pool = {}
        """Every completion of a training prompt that there is: the data's, and the samples of earlier rounds."""
        add_to_pool(self.known, source.split.train)

    def start(self) -> dict[str, Any]:
        """The front of the policy that rounds start from."""
        self._validate(self.current, self.work.part("start"))
        return front_of(self.validated, self.source.scored, self.options.seed)

    def run(self, number: int) -> dict[str, Any]:
        """The account of a round, done now or before; the next one starts from its policy if it is kept."""
        folder = self.work.part(f"round-{number}")
        if (folder / ACCOUNT).exists():
            record: dict[str, Any] = read_json(folder / ACCOUNT)
            self.report.skip(_steps_of(record))
        else:
            write_json(folder / ACCOUNT, self._round(folder, number))
            record = read_json(folder / ACCOUNT)
            self.report.figures(_figures(record), part="rounds")
        if record["kept"]:
            self.current, self.validated = folder / POLICY, folder / VALIDATED
        add_to_pool(self.known, _as_rows(self._usable(folder)[0], self.source.prompts))
        return record

    def _round(self, folder: Path, number: int) -> dict[str, Any]:
        options, source = self.options, self.source
        prompts = drawn(source.prompts, options.prompts_per_round, options.seed, folder.name)
        self._sample(folder, prompts)
        self._score(folder / SAMPLES, folder / SCORED)
        usable, told = self._usable(folder)
        record: dict[str, Any] = {"round": number, "prompts": len(prompts), "sampled": len(prompts) * options.n, **told}
        record["distance"] = distances(folder / SCORED, source.scored) if source.goals.of_values else None
        mixture = self._mix(folder, usable)
        record |= {"rule": options.keep, "kept_by_rule": mixture.counts, "training": None, "hypervolume": None}
        if not mixture.counts["samples"]:
            return record | {"kept": False, "why": "no sample was kept"}
        try:
            self._train(folder, mixture.rows)
        except DivergedError as error:
            return record | {"training": {"error": error.message}, "kept": False, "why": "its training diverged"}
        record |= {"training": _of_training(folder / POLICY), "mixture_sha256": file_digest(folder / MIXTURE)}
        self._validate(folder / POLICY, folder)
        gain = compare(self.validated, folder / VALIDATED, source.scored, options.seed)
        return record | {"hypervolume": gain, **_decided(gain)}

    def _sample(self, folder: Path, prompts: Sequence[Row]) -> None:
        """Answers of the current policy to the round's prompts, at the goals."""
        options, source = self.options, self.source

        def plan(row: Row, sensed: Profile | None) -> Any:
            key = f"{options.seed}:{folder.name}:{prompt_key(row.prompt)}"
            return source.goals.samples(options.n, key, sensed, source.profiles(row), options.delta)

        sampling = Sampling(options.max_new_tokens, options.temperature, options.top_p)
        self._answer(self.current, prompts, plan, folder / SAMPLES, options.n, sampling, f"{folder.name}:samples")

    def _validate(self, policy: Path, folder: Path) -> None:
        """Greedy answers of a policy to the validation prompts, over the sweep; scored."""
        goals = self.source.goals
        count = len(goals.sweep({} if goals.senses else None))

        def plan(row: Row, sensed: Profile | None) -> Any:
            return goals.sweep(sensed)

        sampling = Sampling(self.options.max_new_tokens)
        key = f"{folder.name}:validation"
        self._answer(policy, self.source.validation, plan, folder / ANSWERS, count, sampling, key)
        self._score(folder / ANSWERS, folder / VALIDATED)

    def _answer(
        self, policy: Path, rows: Sequence[Row], plan: Plan, out: Path, count: int, sampling: Sampling, key: str
    ) -> None:
        if out.exists():
            return
        loaded = load_policy(policy).fuse()
        write_answers(
            loaded,
            rows,
            plan,
            out,
            count=count,
            sampling=sampling,
            seed=self.options.seed,
            key=key,
            batch_size=self.options.batch_size,
            identity={"delta": self.options.delta},
            progress=self.progress,
        )
        let_go(loaded)

    def _score(self, answers: Path, out: Path) -> None:
        if not out.exists():
            score(answers, self.source.scored, out, progress=self.progress, note=self.note)

    def _usable(self, folder: Path) -> tuple[Pool, dict[str, Any]]:
        """The samples that may be trained on, by prompt, and what became of the others.

        An empty answer teaches nothing, one that recites its profile the wrong thing, and one that is known already
        nothing new. A score that could not be had stays None, and is counted.
        """
        names = [each.name for each in self.source.scored]
        pool: Pool = {}
        dropped: Counter[str] = Counter()
        unscored: Counter[str] = Counter()
        for row in read_rows(folder / SCORED):
            key = prompt_key(row.prompt)
            texts = {each.text for each in self.known.get(key, ())}
            for each in row.completions:
                unscored.update(name for name in names if each.scores.get(name) is None)
                cause = _unusable(each, texts, names)
                dropped.update([cause] if cause else [])
                if not cause:
                    texts.add(each.text)
                    pool.setdefault(key, []).append(each)
        told = {"usable": sum(map(len, pool.values())), "dropped": dict(dropped), "unscored": dict(unscored)}
        return pool, told

    def _mix(self, folder: Path, usable: Pool) -> Mixture:
        options, source = self.options, self.source
        mixer = Mixer(options.keep, source.scored, pairs=source.pairs, key=folder.name)
        mixture = mixer.mix(source.split.train, self.known, usable, options.originals, options.seed)
        if not (folder / MIXTURE).exists():
            write_rows(folder / MIXTURE, mixture.rows)
        return mixture

    def _train(self, folder: Path, rows: list[Row]) -> None:
        """The current policy trained on; its validation and test parts, and what it says of its data, stay."""
        if (folder / POLICY).exists():
            self.report.skip(_steps_of({"training": _of_training(folder / POLICY)}))
            return
        source = self.source
        split = Split(rows, source.split.validation, source.split.test, source.split.joined)
        prepared = Prepared(source.objectives, split, len(rows), {}, {"pairs": {}, **source.data})
        train_on(
            source.method,
            prepared,
            folder / POLICY,
            start=self.current,
            settings=self.options.settings,
            force=self.force,
            follow=partial(self.report.record, part=folder.name),
            progress=self.progress,
            note=self.note,
        )


def _unusable(sample: Completion, known: set[str], names: Sequence[str]) -> str:
    """Why a sample is not trained on; empty if it may be."""
    if not sample.text:
        return "empty"
    if sample.extra[ASKED]["echo"]:
        return "echoes"
    if sample.text in known:
        return "duplicates"
    return "without_any_score" if all(sample.scores.get(name) is None for name in names) else ""


def _as_rows(pool: Pool, prompts: Sequence[Row]) -> list[Row]:
    """A pool as rows of its prompts."""
    return [Row(row.prompt, tuple(pool[key])) for row in prompts if (key := prompt_key(row.prompt)) in pool]


def _of_training(policy: Path) -> dict[str, Any]:
    """What a trained policy's metrics.json says of its training."""
    metrics = read_json(policy / "metrics.json")
    return {key: metrics.get(key) for key in ("pairs", "steps", "seconds", "dropped")}


def _steps_of(record: Mapping[str, Any]) -> int:
    """The optimizer steps of a round; none where it was not trained, or diverged."""
    return int((record["training"] or {}).get("steps") or 0)


def _figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """What trackers are told of a round."""
    gain = record["hypervolume"]
    values = {f"hypervolume_{key}": gain[key]["value"] for key in ("before", "after")} if gain else {}
    return {key: record[key] for key in ("round", "sampled", "usable")} | values | {"kept": int(record["kept"])}


def _decided(gain: Mapping[str, Any]) -> dict[str, Any]:
    """Is the round kept? Only if the hypervolume rose."""
    before, after = gain["before"]["value"], gain["after"]["value"]
    if before is None:
        return {"kept": False, "why": gain["before"]["why"]}
    kept = after > before
    change = "rose" if kept else "fell" if after < before else "stayed as it was"
    return {"kept": kept, "why": f"the validation hypervolume {change}"}
