"""The sensing head beside its decoder, as a model that vLLM's pooling engine loads (written against vLLM 0.34).

The pooling engine gives the last token's final hidden state to plain layers, in one of two forms:

    classify   `*ForSequenceClassification`: one linear layer `score`, here with a bias, which vLLM loads and
               transformers' own classes do not have
    embed      the bare decoder and Dense modules in the layout of sentence-transformers: linear layers with a ReLU
               between them

A head is such layers, whatever its shape: standardised inputs go into the first layer's weights, and a skip path runs
through the hidden layers as pairs of units, for relu(y) - relu(-y) = y. What is not: a LayerNorm before the first
layer, a read-out before the last decoder layer (the engine applies the final norm, which loses a state's length), and
a mean over the tokens of the last user message (the engine means over all tokens).

Shapes: I and O width of a layer's input and output, P the head's raw outputs.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paretune.errors import InputError
from paretune.files import write_json
from paretune.policy.backbone import decoder, decoder_layers
from paretune.policy.folder import save_tensors
from paretune.policy.head import SensingHead
from paretune.policy.policy import Policy

Form = Literal["classify", "embed"]
_SENTENCE_TRANSFORMERS = "sentence_transformers.models"
_PROBLEMS = {"regression": "multi_label_classification", "simplex": "single_label_classification"}
"""By which vLLM applies a sigmoid, or a softmax, to the outputs; of any other kind they stay raw (`regression`)."""

_OWN_CLASSES = ("GPT2ForSequenceClassification", "JambaForSequenceClassification")
"""Classifiers that vLLM has classes of its own for, whose `score` takes no bias."""


@dataclass(frozen=True)
class Affine:
    """A linear layer in float32: weight [O, I] and bias [O]."""

    weight_OI: Tensor
    bias_O: Tensor


def why_no_sensor(head: SensingHead, layers: int) -> str | None:
    """Why a head on a decoder of `layers` layers is none that the pooling engine can run; `None` where it is one."""
    at = head.config.layer_of(layers)
    if at is not None:
        return f"the head reads after decoder layer {at} of {layers}, and the pooling engine after the last one only"
    if head.config.readout == "mean":
        return "the head reads the mean over the last user message, and the pooling engine knows no such span"
    if head.config.input_norm:
        return "the head begins with a LayerNorm, which the pooling engine's layers cannot express"
    return None


@torch.no_grad()
def affine_layers(head: SensingHead) -> list[Affine]:
    """The head's raw outputs [B, P] as linear layers with a ReLU between each two; the same up to rounding.

    Raises `InputError` for a head that begins with a LayerNorm.
    """
    if head.config.input_norm:
        raise InputError("a head that begins with a LayerNorm is no chain of linear layers")
    exact = torch.float64
    chain = [
        (each.weight.detach().cpu().to(exact), each.bias.detach().cpu().to(exact))
        for each in head.layers
        if isinstance(each, nn.Linear)
    ]
    if head.linear is not None:
        base_P, mix_2P = head.base.cpu().to(exact), head.mix.cpu().to(exact)
        beside = head.linear.weight.detach().cpu().to(exact), head.linear.bias.detach().cpu().to(exact)
        chain = _beside(chain, beside, base_P, mix_2P)
    if head.config.standardise_input:
        weight_OI, bias_O = chain[0]
        weight_OI = weight_OI / head.input_std.cpu().to(exact)
        chain[0] = weight_OI, bias_O - weight_OI @ head.input_mean.cpu().to(exact)
    return [Affine(weight_OI.float(), bias_O.float()) for weight_OI, bias_O in chain]


_Layer = tuple[Tensor, Tensor]


def _beside(deep: list[_Layer], skip: _Layer, base_P: Tensor, mix_2P: Tensor) -> list[_Layer]:
    """base + mix[0] * skip + mix[1] * deep as one chain: through the hidden layers the skip goes as two halves."""
    (last_PW, last_P), (skip_PI, skip_P) = deep[-1], skip
    through_mix, deep_mix = mix_2P[0], mix_2P[1]
    bias_P = base_P + deep_mix * last_P
    if len(deep) == 1:
        return [(through_mix[:, None] * skip_PI + deep_mix[:, None] * last_PW, bias_P + through_mix * skip_P)]
    first_WI, first_W = deep[0]
    chain = [(torch.cat([first_WI, skip_PI, -skip_PI]), torch.cat([first_W, skip_P, -skip_P]))]
    both = 2 * len(skip_P)
    for weight_OI, bias_O in deep[1:-1]:
        wide_OI = torch.block_diag(weight_OI, torch.eye(both).to(weight_OI))  # type: ignore[no-untyped-call]
        chain.append((wide_OI, torch.cat([bias_O, base_P.new_zeros(both)])))
    halves_P2P = torch.cat([torch.diag(through_mix), -torch.diag(through_mix)], dim=1)
    return [*chain, (torch.cat([deep_mix[:, None] * last_PW, halves_P2P], dim=1), bias_P)]


def save_sensor(policy: Policy, folder: Path) -> dict[str, Any]:
    """Write decoder, head and tokenizer of a merged policy; gives what the provenance says of it."""
    assert policy.head is not None and why_no_sensor(policy.head, len(decoder_layers(policy.causal))) is None
    layers = affine_layers(policy.head)
    classifier = _classifier(policy, layers)
    if classifier is not None:
        classifier.save_pretrained(str(folder), safe_serialization=True)
    else:
        decoder(policy.causal).save_pretrained(str(folder), safe_serialization=True)  # type: ignore[operator]
        _save_dense(layers, folder)
    policy.tokenizer.save_pretrained(str(folder))
    kind = policy.head.config.kind
    said = {
        "regression": "logits, of which a sigmoid gives the profile",
        "simplex": "logits, of which a softmax gives the weights",
    }
    return {
        "form": "classify" if classifier is not None else "embed",
        "kind": kind,
        "outputs": said.get(kind, f"those of a {kind} head (`paretune.policy.head_kinds`)"),
        "count": policy.head.kind.outputs,
    }


def _classifier(policy: Policy, layers: list[Affine]) -> Any | None:
    """The decoder with the head as its `score`; `None` for several layers, or where there is no such class."""
    from transformers import AutoModelForSequenceClassification

    assert policy.head is not None
    known = AutoModelForSequenceClassification._model_mapping
    config = deepcopy(policy.causal.config)
    if len(layers) > 1 or type(config) not in known:
        return None
    config.num_labels = len(layers[0].bias_O)
    if config.num_labels == len(policy.names):
        config.id2label = dict(enumerate(policy.names))
        config.label2id = {name: at for at, name in enumerate(policy.names)}
    config.problem_type = _PROBLEMS.get(policy.head.config.kind, "regression")
    config.pad_token_id = policy.tokenizer.pad_token_id
    if known[type(config)].__name__ in _OWN_CLASSES:
        return None
    with torch.device("meta"):
        model = known[type(config)](config)
    if not isinstance(getattr(model, "score", None), nn.Linear) or not hasattr(model, model.base_model_prefix):
        return None
    setattr(model, model.base_model_prefix, decoder(policy.causal))
    model.score = _linear(layers[0])
    return model


def _linear(layer: Affine) -> nn.Linear:
    out, width = layer.weight_OI.shape
    linear = nn.Linear(width, out)
    linear.weight, linear.bias = nn.Parameter(layer.weight_OI), nn.Parameter(layer.bias_O)
    return linear


def _save_dense(layers: list[Affine], folder: Path) -> None:
    """Pooling at the last token and the head's layers, as sentence-transformers lays modules out."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{_SENTENCE_TRANSFORMERS}.Transformer"}]
    modules.append({"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{_SENTENCE_TRANSFORMERS}.Pooling"})
    width = layers[0].weight_OI.shape[1]
    (folder / "1_Pooling").mkdir()
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, "pooling_mode_lasttoken": True}
    )
    for at, layer in enumerate(layers, start=2):
        place = folder / f"{at}_Dense"
        place.mkdir()
        last = at == len(layers) + 1
        out, width = layer.weight_OI.shape
        write_json(
            place / "config.json",
            {
                "in_features": width,
                "out_features": out,
                "bias": True,
                "activation_function": f"torch.nn.modules.{'linear.Identity' if last else 'activation.ReLU'}",
            },
        )
        dense = nn.Module()
        dense.linear = _linear(layer)
        save_tensors(dense, place / "model.safetensors")
        modules.append({"idx": at, "name": str(at), "path": place.name, "type": f"{_SENTENCE_TRANSFORMERS}.Dense"})
    write_json(folder / "modules.json", modules)
