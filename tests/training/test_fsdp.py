"""Two processes under FSDP2 have the loss and the gradients of one: run by pytest, and by itself as a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from paretune.policy.backbone import hidden_size, load_backbone
from paretune.policy.packed import Branch, Packed, collate
from paretune.training.config import TrainConfig
from paretune.training.module import TrainModule, add_adapter

ROWS = [
    Packed([5, 9, 11, 300, 42], [Branch([7, 8], [20, 21, 22, 2]), Branch([7, 8], [33, 2])]),
    Packed([17, 18], [Branch([3], [100, 101]), Branch([4], [100, 55, 2])]),
    Packed(list(range(40, 60)), [Branch([3, 4], [70, 71]), Branch([3, 4], [70, 2])]),
    Packed([6, 7], [Branch([], [99, 98]), Branch([], [97])]),
]


def module_of(model: str, checkpointing: bool) -> TrainModule:
    """A float64 module whose adapter is far from zero."""
    causal, _ = load_backbone(model, dtype="float64", device="cpu")
    settings = TrainConfig(lora_r=4, lora_alpha=8, lora_dropout=0.0, gradient_checkpointing=checkpointing)
    peft = add_adapter(causal, settings)
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(hidden_size(causal), 2), nn.Sigmoid()).double()
    with torch.no_grad():
        for name, each in peft.named_parameters():
            if "lora_B" in name:
                each.normal_(std=0.1)
    return TrainModule(peft, head).train()


def loss_of(module: TrainModule, rows: list[Packed]) -> torch.Tensor:
    """DPO against the reference and the head's error, summed over the rows."""
    batch = collate(rows, 0)
    reference = module.reference_logp(batch)
    out = module(batch)
    margin = (out.logp - reference).view(-1, 2).diff()[:, 0]
    return -nn.functional.logsigmoid(0.1 * margin).sum() + 10 * (out.predicted - 0.25).square().sum()


def gradients_of(module: TrainModule) -> dict[str, torch.Tensor]:
    """Whole gradients by name."""
    grads = {name: each.grad for name, each in module.named_parameters() if each.grad is not None}
    return {name: each.full_tensor() if hasattr(each, "full_tensor") else each for name, each in grads.items()}


def worker(folder: Path, model: str, rank: int, checkpointing: bool) -> None:
    """One of two processes: half of the rows, layers and the rest sharded; the first writes what came out."""
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    where = f"file://{folder}/rendezvous-{checkpointing}"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    module = module_of(model, checkpointing)
    mesh = distributed.init_device_mesh("cpu", (2,))
    for layer in module.causal.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    loss = loss_of(module, ROWS[rank::2])
    (2 * loss).backward()  # FSDP averages gradients over the processes
    total = loss.detach().clone()
    distributed.all_reduce(total)
    gradients = gradients_of(module)
    if rank == 0:
        torch.save({"loss": total, "gradients": gradients}, folder / f"out-{checkpointing}.pt")
    distributed.destroy_process_group()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_two_processes_under_fsdp2_learn_what_one_does(tiny_llama, tmp_path, checkpointing):
    module = module_of(str(tiny_llama), checkpointing)
    loss = loss_of(module, ROWS)
    loss.backward()
    wanted = gradients_of(module)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(tmp_path), str(tiny_llama)]
    workers = [
        subprocess.Popen(
            [*command, str(rank), str(int(checkpointing))],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [each.communicate(timeout=120)[0] for each in workers]
    finally:
        for each in workers:
            each.kill()
    assert [each.returncode for each in workers] == [0, 0], said
    found = torch.load(tmp_path / f"out-{checkpointing}.pt", weights_only=True)
    torch.testing.assert_close(found["loss"], loss.detach(), atol=1e-6, rtol=1e-6)
    assert found["gradients"].keys() == wanted.keys() and len(wanted) > 10
    for name, each in wanted.items():
        torch.testing.assert_close(found["gradients"][name], each, atol=1e-6, rtol=1e-6, msg=name)


if __name__ == "__main__":
    worker(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), bool(int(sys.argv[4])))
