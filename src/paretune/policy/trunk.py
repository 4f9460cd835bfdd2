"""The trunk: the layers below the first trained one, computed once for the reference's pass and the policy's.

With LoRA on the upper layers only, what the lower ones make of a batch is the same whatever the adapter is. So the
reference's pass keeps it, and the policy's pass over the same batch starts from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from paretune.policy.backbone import decoder_layers


def trunk_depth(causal: Any) -> int:
    """How many layers lie below the first trained one; 0 where something outside the layers is trained, too."""
    layers = decoder_layers(causal)
    inside = {id(each) for each in layers.parameters()}
    if any(each.requires_grad and id(each) not in inside for each in causal.parameters()):
        return 0  # embeddings, say: what the layers are given changes with every step
    if getattr(causal.config.get_text_config(), "num_kv_shared_layers", 0):
        return 0  # upper layers attend to the keys of lower ones (Gemma 3n), which must then be computed
    trained = (at for at, layer in enumerate(layers) if any(each.requires_grad for each in layer.parameters()))
    return next(trained, 0)


class Trunk:
    """What the lower `depth` layers made of one batch, kept by one pass and used up by the next."""

    def __init__(self, causal: Any, depth: int) -> None:
        self._layers: list[nn.Module] = list(decoder_layers(causal)[:depth])
        self._made: Any = None
        self._batch: Any = None

    @contextmanager
    def kept(self, batch: object) -> Iterator[None]:
        """What the trunk makes of `batch` in the pass inside the block is kept."""

        def keep(_: nn.Module, __: Any, made: Any) -> None:
            self._made, self._batch = made, batch

        handle = self._layers[-1].register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def reused(self, batch: object) -> Iterator[None]:
        """In the pass inside the block the trunk is what it was for this very `batch`; computed where none was kept.

        Every layer hands on what the last one made, in the form in which layers of this model hand on. A backward pass
        does not come here: nothing in or below the trunk is trained.
        """
        made, known = self._made, self._batch is batch
        self._made = self._batch = None
        if not known:
            yield
            return
        for layer in self._layers:
            layer.forward = lambda *_, **__: made
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward
