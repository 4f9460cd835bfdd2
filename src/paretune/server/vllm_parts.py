"""What the engine of vLLM needs of vLLM and of the policy's model: its start, the states it keeps, the final norm."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paretune.errors import InputError
from paretune.policy import Policy
from paretune.policy.backbone import decoder
from paretune.server.engine.limits import EngineLimits
from paretune.server.engine.plan import MOST_LOGPROBS


def start_vllm(limits: EngineLimits, dtype: str) -> Callable[[Path, Path, int | None], Any]:
    """vLLM's asynchronous engine on a model folder, keeping the hidden states after one decoder layer."""

    def start(model: Path, states: Path, layer: int | None) -> Any:
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        reading: dict[str, Any] = {}
        if layer is not None:
            reading = {
                "speculative_config": {
                    "method": "extract_hidden_states",
                    "num_speculative_tokens": 1,
                    "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [layer]}},
                },
                "kv_transfer_config": KVTransferConfig(
                    kv_connector="ExampleHiddenStatesConnector",
                    kv_role="kv_producer",
                    kv_connector_extra_config={"shared_storage_path": str(states)},
                ),
            }
        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=str(model),
                dtype=dtype,
                max_num_seqs=limits.max_batch,
                max_logprobs=MOST_LOGPROBS,
                enable_prefix_caching=True,
                generation_config="vllm",  # what a request does not say is ours to say
                **reading,
            )
        )

    return start


def load_states(path: str, length: int) -> Tensor:
    """The hidden states [L, H] of a prompt from the file that vLLM wrote, which is removed."""
    from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
        cleanup_hidden_states,
        load_hidden_states,
    )

    hidden_L1H: Tensor = load_hidden_states(path)["hidden_states"]
    cleanup_hidden_states(path)
    if hidden_L1H.shape[0] != length:
        raise RuntimeError(f"vLLM gave the hidden states of {hidden_L1H.shape[0]} tokens in place of {length}")
    return hidden_L1H[:, 0]


def final_norm(policy: Policy) -> nn.Module:
    """A copy of the norm between the last decoder layer and the LM head: vLLM keeps a layer's states as they leave it.

    It is the module of the decoder whose output is the decoder's. Raises `InputError` where there is none.
    """
    module, found = decoder(policy.causal), list[tuple[nn.Module, Any]]()
    handles = [
        child.register_forward_hook(lambda each, args, output: found.append((each, output)))
        for child in module.children()
    ]
    try:
        with torch.no_grad():
            device = policy.causal.device
            last = module(input_ids=torch.tensor([[policy.renderer.end_of_turn]], device=device)).last_hidden_state
    finally:
        for handle in handles:
            handle.remove()
    for each, output in reversed(found):
        if isinstance(output, Tensor) and output.shape == last.shape and torch.equal(output, last):
            copied: nn.Module = deepcopy(each).cpu()
            return copied
    raise InputError(f"{type(policy.causal).__name__} has no final norm that could be found; use --engine batch")
