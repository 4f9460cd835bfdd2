"""The module that trains: backbone with LoRA, sensing head, one forward over packed rows."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from paretune.errors import InputError
from paretune.policy.head import SensingHead
from paretune.policy.packed import Batch, forward
from paretune.policy.trunk import Trunk, trunk_depth
from paretune.training.config import TrainConfig


@dataclass(frozen=True)
class Outputs:
    """logp [K] and length [K] a branch; predicted [B, M] where there is a head."""

    logp: Tensor
    length: Tensor
    predicted: Tensor | None


class AdapterModule(nn.Module):
    """Backbone with LoRA and a head in one module, so that one wrapper (DDP, FSDP2) sees all that is trained.

    What comes out of a forward pass over a `Batch` is between the module and its learner.
    """

    def __init__(self, peft: Any, head: nn.Module | None, *, backbone_grad_scale: float = 1.0) -> None:
        super().__init__()
        self.peft = peft
        self.head = head
        self.backbone_grad_scale = backbone_grad_scale

    @property
    def causal(self) -> Any:
        """The causal LM with LoRA layers inside."""
        return self.peft.get_base_model()

    def reference_logp(self, batch: Batch) -> Tensor:
        """Log-probabilities of the frozen base model, for learners that need a reference."""
        raise NotImplementedError


class TrainModule(AdapterModule):
    """A policy in training: the head senses the prompt."""

    head: SensingHead | None

    def __init__(
        self,
        peft: Any,
        head: SensingHead | None,
        *,
        backbone_grad_scale: float = 1.0,
        readout_layer: int | None = None,
    ) -> None:
        super().__init__(peft, head, backbone_grad_scale=backbone_grad_scale)
        self.readout_layer = readout_layer
        depth = trunk_depth(self.causal)
        below = readout_layer is not None and readout_layer < depth  # the head reads what would not be computed
        self._trunk = Trunk(self.causal, depth) if depth and not below else None
        self.reference: dict[str, Tensor] | None = None
        """The adapter that serves as reference, by the names of this module's parameters; None: the base model."""

    def forward(self, batch: Batch, *, reference: bool = False) -> Outputs:
        """Log-probabilities of the branches and, but for the reference, predicted profiles, from one pass.

        The head's gradient reaches the backbone times `backbone_grad_scale` (1: the paper; 0: detached).
        """
        with self._shared(batch, reference):
            out = forward(self.causal, batch, layer=self.readout_layer)
        if self.head is None or reference:
            return Outputs(out.logp, out.length, None)
        scale = self.backbone_grad_scale
        readout = out.readout if scale == 1 else out.readout.detach()
        if 0 < scale < 1:
            readout = out.readout * scale + out.readout.detach() * (1 - scale)
        return Outputs(out.logp, out.length, self.head(readout))

    def _shared(self, batch: Batch, reference: bool) -> AbstractContextManager[None]:
        """What lies below the first trained layer is computed once, by the reference's pass, which comes first."""
        if self._trunk is None:
            return nullcontext()
        return self._trunk.kept(batch) if reference else self._trunk.reused(batch)

    def freeze_reference(self) -> None:
        """From now on the reference is the policy as it is (a stage whose reference is the stage before it)."""
        self.reference = {
            name: each.detach().clone()
            for name, each in self.named_parameters()
            if name.startswith("peft.") and each.requires_grad
        }

    @torch.no_grad()
    def reference_logp(self, batch: Batch) -> Tensor:
        """Log-probabilities [K] of the reference on the same packed rows: the frozen base model (adapter off), or the
        frozen adapter, whose tensors stand in for the trained ones for the time of this call."""
        training = self.training
        self.eval()
        try:
            if self.reference is not None:
                out = torch.func.functional_call(self, self.reference, (batch,), {"reference": True})
                return cast(Outputs, out).logp
            with self.peft.disable_adapter():
                return cast(Outputs, self(batch, reference=True)).logp  # by the call: wrappers such as FSDP hook it
        finally:
            self.train(training)


def add_adapter(causal: Any, config: TrainConfig) -> Any:
    """LoRA on every linear layer but the LM head (of the upper `lora_layers` layers when that is above 0).

    The base's own dropout (GPT-2's, say) is switched off, as TRL does: `lora_dropout` is the one that trains.
    """
    from peft import LoraConfig, get_peft_model

    from paretune.policy.lora import use_fused_lora  # with PEFT, which takes seconds to import

    _disable_dropout(causal)
    # seeded here: PEFT initialises the adapter from global random state
    torch.manual_seed(config.seed)
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=_targets(causal, config.lora_layers),
        fan_in_fan_out=_has_conv1d(causal),
        task_type="CAUSAL_LM",
    )
    # adapters in the backbone's own precision; the optimizer keeps float32 masters
    peft = get_peft_model(causal, lora, autocast_adapter_dtype=False)
    use_fused_lora(peft)
    _checkpoint(causal, config)
    return peft


def reopen_adapter(peft: Any, config: TrainConfig) -> Any:
    """A loaded policy's adapter made trainable again, as `add_adapter` leaves a fresh one."""
    causal = peft.get_base_model()
    _disable_dropout(causal)
    for name, parameter in peft.named_parameters():
        parameter.requires_grad_("lora_" in name)
    _checkpoint(causal, config)
    return peft


def _checkpoint(causal: Any, config: TrainConfig) -> None:
    if config.gradient_checkpointing:
        if hasattr(causal, "activation_checkpointing_enable"):  # the name since transformers 5.24; never re-entrant
            causal.activation_checkpointing_enable()
        else:
            causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        causal.enable_input_require_grads()


def _disable_dropout(causal: nn.Module) -> None:
    """It would blur chosen against rejected, and both against the reference."""
    for name, module in causal.named_modules():
        if isinstance(module, nn.Dropout) and ".lora_dropout." not in name:
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


def _targets(causal: Any, upper: int) -> str | list[str]:
    if upper == 0:
        return "all-linear"
    total = int(causal.config.get_text_config().num_hidden_layers)
    if upper > total:
        raise InputError(f"the model has {total} layers, found lora_layers={upper}", field="lora_layers")
    from transformers.pytorch_utils import Conv1D

    wanted = {str(i) for i in range(total - upper, total)}
    names = [
        name
        for name, module in causal.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and wanted & set(name.split("."))
    ]
    return names


def _has_conv1d(causal: Any) -> bool:
    """GPT-2's layers keep their weights transposed; PEFT wants to be told."""
    from transformers.pytorch_utils import Conv1D

    return any(isinstance(module, Conv1D) for module in causal.modules())
