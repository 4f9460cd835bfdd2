"""What a training step costs in time and memory, against the released arithmetic and TRL: `make bench`, or

    python benchmarks/training_step.py [--json] [--dtype float32|bfloat16] [--threads N] [--clock wall|cpu] [--profile]

On the demo's model, SmolLM2-135M with LoRA r 32 on every linear layer: pairs of a 150-token prompt, a rendered profile
and two 60-token completions (each length drawn within a fifth), random tokens. A step is forward, reference, backward
and optimizer. The arms (`training_arms.py`) take the same pairs in turns in one process, one forward pass a step on
either side, and a ratio is the median over turns of the ratio in a turn, so that a busy machine troubles both alike;
`--clock cpu` counts the process's own CPU seconds in place of the wall's. Memory is the rise of resident memory in a
step above what is resident after a first one, each arm in a process of its own. Figures, with `--json` in one object:

time_ratio_released      SGA (preset `paper`) / (TRL 1.16's DPO step + the raw prompt's pass with a 3 x 1024 head)
memory_ratio_released    the same of peak memory
time_ratio_trl_dpo       SGA / TRL's DPO step alone
time_ratio_trl_labels    SGA / TRL's DPO step when it computes logits at labels only, as it does where Triton runs;
                         elsewhere 1.16 computes them at every position
time_ratio_released_labels           the same for the released arithmetic
time_ratio_objectives_10_2           ten objectives / two, the rendered text kept as it is: what an objective costs
time_ratio_objectives_10_2_STYLE     the same as a user sees it: the style's text for ten objectives is longer
time_ratio_kv_cache, memory_...      packed rows / continuing the prompt's KV cache with gradients
time_ratio_separate, memory_...      packed rows / one row a completion and one for the raw prompt
time_ratio_peft_lora, memory_...     fused LoRA layers / PEFT's
time_ratio_float32_adapter           adapters in the backbone's precision / in float32 (PEFT's default)
time_ratio_no_trunk                  LoRA on the upper half of the layers: the lower half computed once a step / twice
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from training_arms import ARMS, Setting, Step

MIB = 2**20
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def timed(steps: dict[str, Step], repeat: int, clock: Clock) -> dict[str, list[float]]:
    """Seconds of every step in `repeat` turns, after one that is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeat + 1):
        for name, step in steps.items():
            gc.collect()
            start = clock()
            step()
            if turn:
                taken[name].append(clock() - start)
    return taken


def ratio(taken: dict[str, list[float]], one: str, other: str) -> float:
    """Median over turns of one arm's time over another's."""
    return round(statistics.median(a / b for a, b in zip(taken[one], taken[other], strict=True)), 3)


# --- memory ---------------------------------------------------------------------------------------------------------


def peak_above(step: Step) -> int:
    """Bytes by which resident memory rises during a step, the first one not counted (Linux)."""
    step()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew
    before = _status("VmRSS")
    step()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(name))
    return int(line.split()[1]) * 1024


def memory_of(arm: str, setting: Setting) -> int:
    """Peak bytes of an arm's step, measured in a process of its own."""
    # glibc returns at once what is freed
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--memory-of", arm, "--setting", json.dumps(dataclasses.asdict(setting))]
    command += ["--threads", str(torch.get_num_threads())]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[-1])


# --- where the time goes ----------------------------------------------------------------------------------------------


def profile(step: Step) -> dict[str, float]:
    """Shares of a step's operator time, and the rate of its matrix products against the machine's."""
    kinds = {"matmul": 0.0, "attention": 0.0, "elementwise": 0.0, "random": 0.0}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_flops=True) as trace:
        step()
    flops = 0
    for event in trace.key_averages():
        kinds[_kind(event.key)] += event.self_cpu_time_total / 1e6
        flops += event.flops if _kind(event.key) == "matmul" else 0
    total = sum(kinds.values())
    shares = {f"{name}_share": round(seconds / total, 3) for name, seconds in kinds.items()}
    return shares | {
        "matmul_gflop": round(flops / 1e9, 1),
        "matmul_gflop_per_s": round(flops / kinds["matmul"] / 1e9, 1),
    }


def _kind(name: str) -> str:
    if name in ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm"):
        return "matmul"
    if "scaled_dot_product" in name:
        return "attention"
    return "random" if any(each in name for each in ("bernoulli", "uniform", "dropout")) else "elementwise"


def matmul_peak(dtype: str, size: int = 2048) -> float:
    """GFLOP/s of one big matrix product."""
    one = torch.randn(size, size, dtype=getattr(torch, dtype))
    best = min(_seconds(lambda: one @ one) for _ in range(5))
    return round(2 * size**3 / best / 1e9, 1)


def _seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


# --- all of it ------------------------------------------------------------------------------------------------------


def measure(setting: Setting, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every figure of a setting."""
    clock = CLOCKS[arguments.clock]
    out: dict[str, Any] = {
        "dtype": setting.dtype,
        "threads": torch.get_num_threads(),
        "clock": arguments.clock,
        **{key: value for key, value in dataclasses.asdict(setting).items() if key != "dtype"},
    }
    names = ["sga", "trl", "released", "trl_labels", "released_labels", "kv_cache", "separate", "peft_lora"]
    if setting.dtype != "float32":
        names.append("float32_adapter")
    if setting.checkpointing:
        names.remove("kv_cache")  # transformers keeps no cache under checkpointing
    steps = {name: ARMS[name](setting) for name in names if not arguments.arms or name in arguments.arms.split(",")}
    taken = timed(steps, arguments.repeat, clock)
    out["seconds_sga"] = round(statistics.median(taken["sga"]), 3)
    out |= {f"time_ratio_{name}": ratio(taken, "sga", name) for name in steps if name != "sga"}
    if "time_ratio_trl" in out:
        out["time_ratio_trl_dpo"] = out.pop("time_ratio_trl")
    if arguments.profile:
        out |= profile(steps["sga"]) | {"matmul_peak_gflop_per_s": matmul_peak(setting.dtype)}
    del steps
    if not arguments.no_objectives:
        out |= objectives(setting, arguments.repeat, clock)
    out["time_ratio_no_trunk"] = upper_half(setting, arguments.repeat, clock)
    if not arguments.no_memory:
        arms = [name for name in names if name not in ("trl_labels", "float32_adapter") and name in taken]
        peaks = {name: memory_of(name, setting) for name in arms}
        out |= {f"memory_mib_{name}": round(peak / MIB) for name, peak in peaks.items()}
        ratios = {f"memory_ratio_{name}": round(peaks["sga"] / peak, 3) for name, peak in peaks.items()}
        out |= {name: value for name, value in ratios.items() if name != "memory_ratio_sga"}
    return out


def upper_half(setting: Setting, repeat: int, clock: Clock) -> float:
    """LoRA on the upper half of the layers: the lower half computed once a step against in both passes."""
    from transformers import AutoConfig

    half = dataclasses.replace(setting, layers=AutoConfig.from_pretrained(setting.base).num_hidden_layers // 2)
    return ratio(timed({name: ARMS[name](half) for name in ("sga", "no_trunk")}, repeat, clock), "sga", "no_trunk")


def objectives(setting: Setting, repeat: int, clock: Clock) -> dict[str, float]:
    """Ten objectives against two: in themselves, and with each style's own text."""
    out = {}
    for style in ("", "scores", "instructions"):
        few, many = (
            dataclasses.replace(setting, objectives=count, style=style or setting.style, rendered=0 if style else 2)
            for count in (2, 10)
        )
        taken = timed({"few": ARMS["sga"](few), "many": ARMS["sga"](many)}, repeat, clock)
        out["time_ratio_objectives_10_2" + (f"_{style}" if style else "")] = ratio(taken, "many", "few")
    return out


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="time and memory of a training step")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing in every arm")
    parser.add_argument("--dropout", type=float, default=0.05, help="LoRA dropout in every arm (the preset's: 0.05)")
    parser.add_argument("--arms", default="", help="only these arms, comma-separated; `sga` must be one")
    parser.add_argument("--profile", action="store_true", help="where the time of the SGA step goes")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-objectives", action="store_true")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        setting = Setting(**json.loads(arguments.setting))
        print(peak_above(ARMS[arguments.memory_of](setting)))
        return
    setting = Setting(
        pairs=arguments.pairs,
        dtype=arguments.dtype,
        checkpointing=arguments.checkpointing,
        dropout=arguments.dropout,
    )
    out = measure(setting, arguments)
    print(json.dumps(out) if arguments.json else "\n".join(f"{key:42} {value}" for key, value in out.items()))


if __name__ == "__main__":
    main()
