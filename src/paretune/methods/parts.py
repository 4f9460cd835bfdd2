"""Methods that train several adapters: each in the shared loop on pairs of its own, then put together in one policy.

`soups` and `mod` train the same adapters, one for each objective; what they do with them at inference differs. `modpo`
trains one for each of several vectors of preference weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from paretune.errors import InputError
from paretune.methods.dpo.method import DpoConfig, DpoLearner
from paretune.methods.examples import Example
from paretune.methods.prepare import Encoded, Prepared, mean_of_targets
from paretune.methods.setup import Fitted, Setup, policy_of, trainable
from paretune.methods.sft.method import SftLearner
from paretune.policy.renderer import Renderer
from paretune.policy.several import Part, assemble
from paretune.training import TrainModule, run
from paretune.training.config import HEADLESS
from paretune.training.loop import Learner


@dataclass(frozen=True)
class PairsConfig(DpoConfig):
    """DPO's settings, where each adapter's pairs are decided by one objective."""

    without_effect: ClassVar[Mapping[str, str]] = HEADLESS | {"pairs": "one objective decides the pairs of an adapter"}


@dataclass(frozen=True)
class ObjectivesConfig(PairsConfig):
    """`objective_loss`: an adapter is trained by `dpo` on its objective's pairs, or by `sft` on the better completion
    of each (`beta` and `reference_free` are DPO's)."""

    objective_loss: Literal["dpo", "sft"] = "dpo"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective_loss == "sft":
            for name in ("beta", "reference_free"):
                self.refuse_changed(name, "it is DPO's, and objective_loss is sft")


@dataclass(frozen=True)
class Plan:
    """A part to train: which, on which rows, by what."""

    part: Part
    encoded: Encoded
    learner: Learner[Any]


def objective_learner(
    examples: Sequence[Example], config: ObjectivesConfig, names: Sequence[str]
) -> DpoLearner | SftLearner:
    """What trains the adapter of one objective."""
    kind = DpoLearner if config.objective_loss == "dpo" else SftLearner
    return kind(examples, config, names)


def fit_objectives(setup: Setup) -> Fitted:
    """An adapter for each objective, on pairs that its scores alone decide."""
    plans = []
    for name in setup.names:
        encoded = objective_pairs(setup, name)
        weights = {each: float(each == name) for each in setup.names}
        plans.append(Plan(Part(name, weights), encoded, objective_learner(encoded.train, setup.config, setup.names)))
    return fit_parts(setup, plans)


def objective_pairs(setup: Setup, name: str) -> Encoded:
    """The rows with pairs decided by one objective's scores; neither labels nor wishes have a say."""
    rule = {"rule": "weights", "weights": {name: 1.0}, "labels": False, "wanted": False}
    rule |= {"margin": setup.config.pair_margin, "seed": setup.config.seed}
    try:
        return setup.encode(rule)
    except InputError as error:
        raise InputError(f"objective '{name}': {error.message}", file=error.file, field=error.field) from None


def fit_parts(setup: Setup, plans: Sequence[Plan]) -> Fitted:
    """Train the parts one after the other, each from the base model with a fresh adapter, and put them together.

    `setup.encoded` becomes what they were trained on, taken together. Seconds, steps and tokens are the parts' sums.
    """
    from peft import get_peft_model_state_dict

    tensors: list[Mapping[str, Tensor]] = []
    measured: list[dict[str, Any]] = []
    lora: Any = None
    config = share_of(setup.config, len(plans))
    for plan in plans:
        module = trainable(setup)
        found = run(
            module,
            plan.learner,
            config,
            pad_id=setup.pad_id,
            journal=setup.journal,
            progress=setup.progress,
            checkpoints=setup.checkpoints,
            part=plan.part.name,
        )
        lora = module.peft.peft_config["default"]
        state = get_peft_model_state_dict(module.peft, save_embedding_layers=False)
        tensors.append({name: each.detach().clone() for name, each in state.items()})
        module.peft.unload()  # the base model as it was, for the next part
        measured.append({"name": plan.part.name, "weights": plan.part.weights, "pairs": plan.encoded.pairs} | found)
    rule = setup.method.weights
    assert rule is not None
    setup.encoded = together(setup.prepared, [plan.encoded for plan in plans])
    parts = assemble(setup.causal, lora, [plan.part for plan in plans], tensors, rule)
    policy = policy_of(setup, TrainModule(parts.peft, None))
    policy.parts = parts
    return Fitted(policy, costs(measured) | {"adapters": len(parts), "parts": measured})


def share_of(config: Any, parts: int) -> Any:
    """The settings of one of several parts: `max_steps` and `max_tokens` are for all of them together."""
    limits = {key: getattr(config, key) for key in ("max_steps", "max_tokens")}
    for key, most in limits.items():
        if 0 < most < parts:
            raise InputError(f"must be at least {parts}, one for each adapter, found {most}", field=key)
    return replace(config, **{key: most // parts for key, most in limits.items()})


def costs(measured: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Steps, seconds and tokens of all parts, under the names that a training of one adapter has."""
    total = {key: sum(each[key] for each in measured) for key in ("steps", "tokens", "seconds")}
    total["seconds"] = round(total["seconds"], 3)
    total["peak_memory_mib"] = max(each["peak_memory_mib"] for each in measured)
    return total | {"tokens_per_second": round(total["tokens"] / max(total["seconds"], 1e-9), 2)}


def later(config: Any, prepared: Prepared, renderer: Renderer, context: int, strict: bool) -> Encoded:
    """No examples yet: every part's own pairs are built when it is planned."""
    return Encoded([], [], {}, 0)


def together(prepared: Prepared, parts: Sequence[Encoded]) -> Encoded:
    """The parts' rows, each once; their pairs and the rows that they dropped, added up; the mean of all targets."""

    def union(lists: Sequence[Sequence[Example]]) -> list[Example]:
        return list({example.row.id: example for examples in lists for example in examples}.values())

    dropped = Counter(prepared.dropped)  # bad rows are read once
    for part in parts:
        dropped.update({key: count for key, count in part.dropped.items() if key not in prepared.dropped})
    targets = [example for part in parts for example in part.train]
    return Encoded(
        union([part.train for part in parts]),
        union([part.validation for part in parts]),
        mean_of_targets(targets, prepared),
        sum(part.pairs for part in parts),
        dict(dropped),
    )
