"""A loop that was ended anywhere and is run again makes, bit for bit, what it would have made without the break."""

from __future__ import annotations

import errno
import json
import signal
import threading
from dataclasses import dataclass, replace

import pytest
import torch
from safetensors.torch import load_file

from paretune.errors import InputError
from paretune.policy.packed import Branch, Packed
from paretune.training import Checkpoints, Journal, TrainConfig, checkpoint, run
from paretune.training.optimizer import MasterAdamW
from paretune.training.resume import whole


class Killed(BaseException):
    """As SIGKILL: nobody handles it."""


@dataclass(frozen=True)
class Row:
    name: str
    packed: Packed


class Staged:
    """Likelihood, a pull of the head to one half, and from the second epoch on a pull to where the adapter was then.

    `end` is an exception that ends the training while the loss of step `at` (from 1) is computed.
    """

    needs_reference = False

    def __init__(self, at=0, end=Killed):
        self.rows = [
            Row(f"r{i}", Packed([1 + i, 2, 3], [Branch([7], [10 + i + k for k in range(4)])])) for i in range(9)
        ]
        self.at, self.end, self.asked, self.computed = at, end, [], 0
        self.anchor, self.module = {}, None

    def __len__(self):
        return len(self.rows)

    def item(self, index, epoch):
        self.asked.append((epoch, index))
        return self.rows[index]

    def counts(self, items):
        return {"rows": len(items)}

    def begin_epoch(self, epoch, module):
        self.module = module
        if epoch == 1:
            self.anchor = {name: each.detach().clone() for name, each in self._adapter()}

    def _adapter(self):
        return [(name, each) for name, each in self.module.named_parameters() if "lora_B" in name]

    def state(self):
        return self.anchor

    def restore(self, state, module):
        assert state.keys() == dict(self._adapter()).keys()
        self.anchor = state

    def loss(self, out, reference, items, counts):
        self.computed += 1
        if self.computed == self.at:
            raise self.end
        loss = -out.logp.sum() / 10 / counts["rows"] + (out.predicted - 0.5).square().sum() / counts["rows"]
        for name, each in self._adapter() if self.anchor else ():
            loss = loss + 10 * (each - self.anchor[name].to(each)).square().sum()
        return loss, {"nll": float(loss.detach())}


CONFIG = {"lr": 1e-2, "epochs": 3, "batch_size": 3, "micro_tokens": 10**6, "lora_r": 4, "lora_alpha": 8, "clip": 1.0}
STEPS = 9


@pytest.fixture
def trained(make_module, tiny_llama, tmp_path):
    """Trains a module with dropout and gives its weights, its journal less the clock, and the metrics."""

    def go(learner=None, out="p", checkpoints=True, part="", dtype="float32", notes=None, **config):
        settings = TrainConfig(**{**CONFIG, **config})
        module = make_module(tiny_llama, dtype=dtype, lora_dropout=0.3)
        journal = Journal(tmp_path / f"{out}.jsonl")
        kept = Checkpoints(
            tmp_path / out,
            {"what": "test"},
            every=settings.save_every,
            keep=settings.keep,
            note=(notes if notes is not None else []).append,
        )
        try:
            metrics = run(
                module,
                learner or Staged(),
                settings,
                pad_id=0,
                journal=journal,
                checkpoints=kept if checkpoints else None,
                part=part,
            )
        finally:
            journal.close()
        return weights(module), logged(tmp_path / f"{out}.jsonl"), timeless(metrics)

    return go


def weights(module):
    return {name: each.detach().clone() for name, each in module.named_parameters() if each.requires_grad}


def timeless(record):
    measured = ("seconds", "tokens_per_second", "peak_memory_mib")
    return {key: value for key, value in record.items() if key not in measured}


def logged(path):
    return [timeless(json.loads(line)) for line in path.read_text().splitlines()]


def same(one, two):
    assert one[1] == two[1] and one[2] == two[2]
    assert one[0].keys() == two[0].keys()
    for name, each in one[0].items():
        assert torch.equal(each, two[0][name]), name


def steps_kept(tmp_path, out="p"):
    return sorted(int(each.name[5:]) for each in (tmp_path / f".{out}.checkpoints").glob("step-*"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("every", "ends"), [(1, (1, 2, 3, 4)), (2, (4, 3, 3)), (0, (5, 3)), (4, (2, 8, 3))])
def test_ended_anywhere_and_run_again_is_the_run_without_a_break(trained, tmp_path, every, ends, dtype):
    plain = trained(out="plain", checkpoints=False, dtype=dtype)
    for at in ends:  # each run is killed in the at-th step that it does itself
        with pytest.raises(Killed):
            trained(Staged(at), save_every=every, dtype=dtype)
    last = Staged()
    same(trained(last, save_every=every, dtype=dtype), plain)
    assert 0 < last.computed < STEPS  # it did go on, from a checkpoint
    assert steps_kept(tmp_path) == [STEPS]


def test_the_dropout_and_the_stages_of_these_tests_matter(trained, monkeypatch):
    plain = trained(out="plain", checkpoints=False)
    for name in ("set_rng_state", "anchor"):
        with monkeypatch.context() as patch:
            if name == "anchor":
                patch.setattr(Staged, "restore", lambda self, state, module: None)
            else:
                patch.setattr(torch, name, lambda state: None)
            with pytest.raises(Killed):
                trained(Staged(6), out=name, save_every=1)
            assert trained(out=name, save_every=1)[1] != plain[1]


def test_a_break_between_two_epochs_begins_the_next(trained):
    plain = trained(out="plain", checkpoints=False)
    with pytest.raises(Killed):
        trained(Staged(4), save_every=3)  # in the first step of the second epoch, whose stage has begun by then
    same(trained(save_every=3), plain)


def test_a_finished_training_is_not_done_again(trained, tmp_path):
    first, again = trained(), Staged()
    same(trained(again), first)
    assert again.computed == 0 and again.asked == []
    stored = load_file(str(tmp_path / ".p.checkpoints" / "step-000009" / "state.safetensors"))
    assert {name.partition("/")[0] for name in stored} == {"model", "random"}  # nobody needs the moments any more


def test_parts_follow_each_other_and_finished_ones_are_not_trained_again(trained, tmp_path):
    whole_run = [trained(out="plain", part=part, lr=lr) for part, lr in (("a/b", 1e-2), ("c", 1e-3))]
    first, second = Staged(), Staged(5)
    trained(first, part="a/b", lr=1e-2)
    with pytest.raises(Killed):
        trained(second, part="c", lr=1e-3, save_every=2)
    first, second = Staged(), Staged()
    same(trained(first, part="a/b", lr=1e-2), whole_run[0])
    same(trained(second, part="c", lr=1e-3), whole_run[1])
    assert (first.computed, second.computed) == (0, STEPS - 4)
    assert [(each["part"], each["step"]) for each in whole_run[1][1]] == [("c", at + 1) for at in range(STEPS)]
    assert "part" not in whole_run[1][2]
    names = {each.name for each in (tmp_path / ".p.checkpoints").iterdir()}
    assert names == {"training.json", "part-a%2Fb", "part-c"}


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_saves_the_last_whole_step(trained, tmp_path, end):
    plain, notes, rest = trained(out="plain", checkpoints=False), [], Staged()
    with pytest.raises(end):
        trained(Staged(6, end), save_every=0)
    assert steps_kept(tmp_path) == [5]
    same(trained(rest, save_every=0, notes=notes), plain)
    assert rest.computed == STEPS - 5
    assert notes == ["continuing from step 5 of 9 (.p.checkpoints)"]


def test_an_interrupt_in_the_first_step_leaves_no_checkpoint(trained, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(Staged(1, KeyboardInterrupt))
    assert not (tmp_path / ".p.checkpoints").exists()


def test_an_interrupt_never_halves_a_step(trained, tmp_path, monkeypatch):
    plain, step, done = trained(out="plain", checkpoints=False), MasterAdamW.step, []

    def interrupted(self, clip):
        norm = step(self, clip)
        done.append(norm)
        if len(done) == 4:
            signal.raise_signal(signal.SIGINT)  # the weights have moved, and nothing else knows of it yet
        return norm

    monkeypatch.setattr(MasterAdamW, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trained(save_every=0)
    assert steps_kept(tmp_path) == [4] and [each["step"] for each in logged(tmp_path / "p.jsonl")] == [1, 2, 3, 4]
    same(trained(save_every=0), plain)


def test_signals_wait_for_the_end_of_the_block():
    seen = []
    with pytest.raises(KeyboardInterrupt), whole():
        signal.raise_signal(signal.SIGINT)
        seen.append("after the signal")
    assert seen == ["after the signal"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("terminated"))
    try:
        with whole():
            signal.raise_signal(signal.SIGTERM)
            seen.append("and then")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen[1:] == ["and then", "terminated"]


def test_other_threads_are_left_alone():
    seen = []

    def work():
        with whole():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_a_full_disk_is_noted_and_training_goes_on(trained, tmp_path, monkeypatch):
    plain, notes, write = trained(out="plain", checkpoints=False), [], checkpoint._write

    def sometimes(state, folder):
        if state.step in (6, 9):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(state, folder)

    monkeypatch.setattr(checkpoint, "_write", sometimes)
    found = trained(save_every=3, notes=notes)
    assert found[0].keys() == plain[0].keys() and all(torch.equal(each, plain[0][n]) for n, each in found[0].items())
    assert found[2] == plain[2]
    assert [each for each in found[1] if "warning" not in each] == plain[1]
    cause = "[Errno 28] No space left on device"
    assert [each for each in found[1] if "warning" in each] == [
        {"step": step, "warning": f"no checkpoint could be saved: {cause}"} for step in (6, 9)
    ]
    assert notes == [f"no checkpoint could be saved after step {step}: {cause}" for step in (6, 9)]
    assert steps_kept(tmp_path) == [3]
    again = Staged()
    assert trained(again)[2] == plain[2] and again.computed == 6


def test_seconds_and_tokens_count_from_the_very_start(make_module, tiny_llama, tmp_path, monkeypatch):
    def once(learner):
        journal, kept = Journal(tmp_path / "p.jsonl"), Checkpoints(tmp_path / "p", {"what": "test"}, every=1)
        return run(make_module(tiny_llama), learner, TrainConfig(**CONFIG), pad_id=0, journal=journal, checkpoints=kept)

    write = checkpoint._write
    monkeypatch.setattr(checkpoint, "_write", lambda state, folder: write(replace(state, seconds=1e5), folder))
    with pytest.raises(Killed):
        once(Staged(5))
    metrics = once(Staged())
    assert 1e5 < metrics["seconds"] < 2e5 and metrics["tokens_per_second"] < 0.1 and metrics["tokens"] == 216


def test_a_checkpoint_of_another_shape_is_refused(make_module, tiny_llama, tmp_path, trained):
    trained()
    module = make_module(tiny_llama, dtype="float64", lora_dropout=0.3)  # another precision
    with pytest.raises(
        InputError, match=r"holds a checkpoint of another model \('peft\..*' does not fit\); pass --restart"
    ):
        run(
            module,
            Staged(),
            TrainConfig(**CONFIG),
            pad_id=0,
            journal=Journal(tmp_path / "j"),
            checkpoints=Checkpoints(tmp_path / "p", {"what": "test"}),
        )


def test_smaller_passes_after_memory_ran_out_go_through_a_break(trained):
    class Hungry(Staged):
        """The third pass of all has no memory."""

        def __init__(self, fails=True, at=0):
            super().__init__(at)
            self.fails, self.passes = fails, []

        def loss(self, out, reference, items, counts):
            self.passes.append(len(items))
            if self.fails and len(self.passes) == 3:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().loss(out, reference, items, counts)

    budget = {"micro_tokens": 96, "save_every": 1}  # three rows of 32 tokens in one pass
    whole_run = trained(Hungry(), "plain", **budget)
    with pytest.raises(Killed):
        trained(Hungry(at=6), **budget)
    second = Hungry(fails=False)
    same(trained(second, **budget), whole_run)
    assert set(second.passes) == {1}
