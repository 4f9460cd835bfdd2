"""The loop: order, forward passes, schedule, accumulation, and the guard before the step."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest
import torch

from paretune.errors import InputError
from paretune.policy.packed import Branch, Packed
from paretune.training import DivergedError, Journal, TrainConfig, run
from paretune.training.loop import learning_rate, micro_batches, order


@dataclass(frozen=True)
class Row:
    """An item: a packed row."""

    name: str
    packed: Packed


def row(i, length=5):
    return Row(f"r{i}", Packed([1 + i, 2, 3 + i], [Branch([7], [10 + i + k for k in range(length)])]))


class Likelihood:
    """Mean negative log-likelihood a token plus a pull of the head to one half."""

    needs_reference = False

    def __init__(self, rows, poison=None):
        self.rows, self.poison, self.asked = rows, poison, []

    def __len__(self):
        return len(self.rows)

    def item(self, index, epoch):
        self.asked.append((epoch, index))
        return self.rows[index]

    def counts(self, items):
        return {"tokens": sum(len(b.completion) for item in items for b in item.packed.branches), "rows": len(items)}

    def loss(self, out, reference, items, counts):
        nll = -out.logp.sum() / counts["tokens"]
        sense = (out.predicted - 0.5).square().sum() / counts["rows"]
        if self.poison in [item.name for item in items]:
            nll = nll * float("nan")
        return nll + sense, {"nll": float(nll.detach()), "sense": float(sense.detach())}


def config(**values):
    return TrainConfig(
        **{"lr": 1e-2, "epochs": 1, "batch_size": 4, "clip": 1.0, "lora_r": 4, "lora_alpha": 8, **values}
    )


def weights(module):
    return {name: each.detach().clone() for name, each in module.named_parameters() if each.requires_grad}


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- order, passes, schedule --------------------------------------------------------------------------------------


def test_order_depends_on_seed_and_epoch_alone():
    assert sorted(order(20, 0, 0)) == list(range(20))
    assert order(20, 0, 0) == order(20, 0, 0)
    assert len({tuple(order(20, seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


def test_passes_hold_every_item_once_within_the_budget():
    items = [row(i, 1 + 7 * i) for i in range(12)]
    groups = micro_batches(items, 200)
    assert sorted(item.name for group in groups for item in group) == sorted(item.name for item in items)
    for group in groups:
        width = -(-max(item.packed.length for item in group) // 32) * 32
        assert len(group) == 1 or len(group) * width <= 200
    assert [len(group) for group in micro_batches(items, 1)] == [1] * 12


def test_schedules_by_hand():
    def factors(schedule, warmup):
        settings = config(schedule=schedule, warmup_steps=warmup)
        return [learning_rate(settings, step, 4 + warmup) for step in range(4 + warmup)]

    assert factors("constant", 0) == [1, 1, 1, 1]
    assert factors("linear", 0) == [1, 0.75, 0.5, 0.25]
    root = math.sqrt(0.5)
    assert factors("cosine", 0) == pytest.approx([1, (1 + root) / 2, 0.5, (1 - root) / 2])
    assert factors("linear", 2) == [0.5, 1, 1, 0.75, 0.5, 0.25]


# --- accumulation -------------------------------------------------------------------------------------------------


def one_step(module, tmp_path, micro_tokens, rows=7):
    learner = Likelihood([row(i, 1 + 9 * i) for i in range(rows)])
    path = tmp_path / f"{micro_tokens}.jsonl"
    journal = Journal(path)
    run(module, learner, config(batch_size=rows, micro_tokens=micro_tokens), pad_id=0, journal=journal)
    journal.close()
    return records(path)[0], weights(module)


def test_accumulation_is_the_batch(tiny_model, make_module, tmp_path):
    from paretune.training.loop import _accumulate

    def grads(micro_tokens):
        module = make_module(tiny_model).train()
        learner = Likelihood([row(i, 1 + 9 * i) for i in range(7)])
        items = [learner.item(i, 0) for i in range(7)]
        logged, tokens = _accumulate(module, learner, items, config(micro_tokens=micro_tokens), 0)
        return logged, tokens, {name: each.grad for name, each in module.named_parameters() if each.requires_grad}

    (whole, tokens, wanted), (parts, same, found) = grads(10**6), grads(1)
    assert tokens == same and whole.keys() == parts.keys() == {"loss", "nll", "sense"}
    for key in whole:
        assert parts[key] == pytest.approx(whole[key], abs=1e-6), key
    assert parts["nll"] == pytest.approx(whole["nll"], abs=1e-9)  # float64; the head is float32
    for name, each in wanted.items():
        tolerance = 1e-6 if name.startswith("head.") else 1e-7
        torch.testing.assert_close(found[name], each, atol=tolerance, rtol=1e-6, msg=name)


def test_accumulation_logs_and_steps_the_same(tiny_llama, make_module, tmp_path):
    one, after = one_step(make_module(tiny_llama), tmp_path, 10**6)
    two, same = one_step(make_module(tiny_llama), tmp_path, 1)
    for key in ("step", "epoch", "loss", "nll", "sense", "lr", "tokens", "grad_norm"):
        assert two[key] == pytest.approx(one[key], rel=1e-6), key
    for name, each in after.items():
        torch.testing.assert_close(same[name], each, atol=1e-5, rtol=1e-4, msg=name)


# --- the run ------------------------------------------------------------------------------------------------------


def test_every_row_is_seen_once_an_epoch_and_every_step_is_logged(tiny_llama, make_module, tmp_path):
    learner = Likelihood([row(i) for i in range(10)])
    journal = Journal(tmp_path / "t" / "train.jsonl")
    final = run(make_module(tiny_llama), learner, config(epochs=2), pad_id=0, journal=journal)
    journal.close()
    assert [sorted(i for e, i in learner.asked if e == epoch) for epoch in (0, 1)] == [list(range(10))] * 2
    lines = records(tmp_path / "t" / "train.jsonl")
    assert [each["step"] for each in lines] == [1, 2, 3, 4, 5, 6] and [each["epoch"] for each in lines] == [0] * 3 + [
        1
    ] * 3
    assert final["steps"] == 6 and final["loss"] == lines[-1]["loss"]
    assert all(math.isfinite(value) for each in lines for value in each.values())
    assert lines[-1]["nll"] < lines[0]["nll"]
    assert [each["lr"] for each in lines] == pytest.approx([1e-2 * learning_rate(config(), i, 6) for i in range(6)])


def test_max_steps_and_max_tokens_end_training_and_its_schedule(tiny_llama, make_module, tmp_path):
    def ended(**limits):
        learner, journal = Likelihood([row(i) for i in range(10)]), Journal(tmp_path / "t" / "train.jsonl")
        final = run(make_module(tiny_llama), learner, config(epochs=3, **limits), pad_id=0, journal=journal)
        journal.close()
        lines = records(tmp_path / "t" / "train.jsonl")
        assert final["steps"] == len(lines)
        assert [each["lr"] for each in lines] == pytest.approx(
            [1e-2 * learning_rate(config(), i, len(lines)) for i in range(len(lines))]
        )
        return len(lines), final["tokens"]

    # a row has 9 tokens, an epoch batches of 4, 4 and 2
    assert ended() == (9, 270)
    assert ended(max_steps=4) == (4, 36 + 36 + 18 + 36)
    assert ended(max_steps=100) == (9, 270)
    assert ended(max_tokens=1) == (1, 36)
    assert ended(max_tokens=36) == (1, 36)
    assert ended(max_tokens=37) == (2, 72)
    assert ended(max_tokens=200, max_steps=5) == (5, 162)
    assert ended(max_tokens=10**6) == (9, 270)


def test_the_head_may_learn_at_a_rate_of_its_own(tiny_llama, make_module, tmp_path):
    def moved(**values):
        module = make_module(tiny_llama)
        before = weights(module)
        run(module, Likelihood([row(0)]), config(**values), pad_id=0, journal=Journal(tmp_path / "j"))
        return {name: (each - before[name]).abs().max().item() for name, each in weights(module).items()}

    slow, fast = moved(lr=1e-3), moved(lr=1e-3, lr_head=1e-1)
    # Adam's first step is the learning rate itself
    assert slow["head.layers.3.bias"] == pytest.approx(1e-3, rel=0.01)
    assert fast["head.layers.3.bias"] == pytest.approx(1e-1, rel=0.01)
    name = next(name for name in slow if "lora_B" in name)
    assert fast[name] == slow[name] == pytest.approx(1e-3, rel=0.05)


def test_a_number_that_is_not_finite_stops_before_the_step(tiny_llama, make_module, tmp_path):
    learner = Likelihood([row(i) for i in range(8)], poison=f"r{order(8, 0, 0)[5]}")  # in the second step
    module, journal = make_module(tiny_llama), Journal(tmp_path / "train.jsonl")
    after_one = make_module(tiny_llama)
    run(after_one, Likelihood([learner.rows[i] for i in order(8, 0, 0)[:4]]), config(schedule="constant"), pad_id=0,
        journal=Journal(tmp_path / "other"))  # fmt: skip
    with pytest.raises(DivergedError, match=r"stopped before the step: .*nll.* not finite. Rows in the batch: .*r"):
        run(module, learner, config(schedule="constant"), pad_id=0, journal=journal)
    journal.close()
    assert [each["step"] for each in records(tmp_path / "train.jsonl")] == [1]
    for name, each in weights(module).items():
        assert torch.isfinite(each).all()
        torch.testing.assert_close(each, weights(after_one)[name], atol=1e-6, rtol=1e-5, msg=name)


def test_the_journal_refuses_what_is_not_a_number(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    with pytest.raises(ValueError, match="JSON"):
        journal.write({"loss": math.nan})


# --- the guards ---------------------------------------------------------------------------------------------------


def trained(module, learner, path, **values):
    journal = Journal(path)
    try:
        return run(module, learner, config(schedule="constant", **values), pad_id=0, journal=journal)
    finally:
        journal.close()


def test_a_batch_that_is_not_finite_is_left_out_and_counted(tiny_llama, make_module, tmp_path):
    rows = [row(i) for i in range(8)]
    seen = order(8, 0, 0)
    module, without = make_module(tiny_llama), make_module(tiny_llama)
    final = trained(module, Likelihood(rows, poison=f"r{seen[5]}"), tmp_path / "j", nonfinite="skip")
    # the second of two batches is left out, so the first alone has taught
    trained(without, Likelihood(rows), tmp_path / "k", max_steps=1)
    one, two = records(tmp_path / "j")
    assert two["skipped"] == "loss, nll not finite" and two["rows"] == [f"r{i}" for i in seen[4:]]
    assert final["skipped_steps"] == 1 and final["loss"] == one["loss"] and final["tokens"] == two["tokens"] == 72
    for name, each in weights(without).items():
        torch.testing.assert_close(weights(module)[name], each, atol=1e-9, rtol=0, msg=name)


def test_a_gradient_that_is_not_finite_is_left_out_too(tiny_llama, make_module, tmp_path):
    class Steep(Likelihood):
        def loss(self, out, reference, items, counts):
            loss, parts = super().loss(out, reference, items, counts)
            if f"r{order(8, 0, 0)[5]}" in [item.name for item in items]:
                loss = loss + (out.logp.sum() * 0).abs().sqrt()  # 0, with an infinite slope times 0
            return loss, parts

    module = make_module(tiny_llama)
    trained(module, Steep([row(i) for i in range(8)]), tmp_path / "j", nonfinite="skip")
    assert records(tmp_path / "j")[1]["skipped"] == "grad_norm not finite"
    assert all(torch.isfinite(each).all() for each in weights(module).values())


def test_ten_in_a_row_end_the_training(tiny_llama, make_module, tmp_path):
    class Broken(Likelihood):
        def loss(self, out, reference, items, counts):
            return out.logp.sum() * float("inf"), {}

    with pytest.raises(DivergedError, match=r"10 batches in a row were left out, the last for loss not finite. Rows"):
        trained(
            make_module(tiny_llama), Broken([row(i) for i in range(12)]), tmp_path / "j", nonfinite="skip", batch_size=1
        )
    assert len(records(tmp_path / "j")) == 10
    with pytest.raises(DivergedError, match="nothing was learnt"):
        trained(make_module(tiny_llama), Broken([row(0)]), tmp_path / "j", nonfinite="skip")


class Hungry(Likelihood):
    """Has no memory for more than `most` rows in one forward pass, in the step of which it is the second pass."""

    def __init__(self, rows, most, error):
        super().__init__(rows)
        self.most, self.error, self.passes = most, error, []

    def loss(self, out, reference, items, counts):
        self.passes.append(len(items))
        if len(items) > self.most and len(self.passes) > 1:
            raise self.error
        return super().loss(out, reference, items, counts)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_out_of_memory_halves_the_passes_of_the_same_batch(tiny_llama, make_module, tmp_path, error):
    rows = [row(i) for i in range(8)]
    hungry, plain = make_module(tiny_llama), make_module(tiny_llama)
    learner = Hungry(rows, 2, error)
    # rows are 32 tokens wide: two passes of four; the second has no memory, with the first's gradients in place
    trained(hungry, learner, tmp_path / "j", batch_size=8, micro_tokens=128, epochs=2)
    trained(plain, Likelihood(rows), tmp_path / "k", batch_size=8, micro_tokens=64, epochs=2)
    assert learner.passes == [4, 4] + [2] * 8  # and the next step does not try four again
    warning, *steps = records(tmp_path / "j")
    assert warning["micro_tokens"] == 64 and "out of memory" in warning["warning"]
    for one, two in zip(steps, records(tmp_path / "k"), strict=True):
        assert one["loss"] == two["loss"] and one["grad_norm"] == two["grad_norm"]
    for name, each in weights(plain).items():
        assert torch.equal(weights(hungry)[name], each), name


def test_out_of_memory_with_one_row_says_what_to_lower(tiny_llama, make_module, tmp_path):
    learner = Hungry([row(i) for i in range(8)], 0, torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(InputError, match=r"out of memory in step 1, with 32 tokens a forward pass. Lower micro_tokens"):
        trained(make_module(tiny_llama), learner, tmp_path / "j", batch_size=8, micro_tokens=64)


def test_other_errors_are_not_taken_for_memory(tiny_llama, make_module, tmp_path):
    learner = Hungry([row(i) for i in range(8)], 0, RuntimeError("shapes do not fit"))
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        trained(make_module(tiny_llama), learner, tmp_path / "j", batch_size=8, micro_tokens=64)
