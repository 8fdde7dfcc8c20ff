"""The configuration keys of the network: which it is, its pretrained weights, and its adapters (table ``adapter``)."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, model_validator

from florilegium.common.model_folders import named_folder
from florilegium.common.settings import Section, check_folder, key
from florilegium.models.networks import NETWORKS


def _check_weights(text: str) -> str:
    if text and not text.endswith(".safetensors"):
        raise ValueError(f"'{text}' is no .safetensors file; others are not read, since opening them may run code")
    return check_folder(text)


class AdapterSettings(Section):
    """What is trained of a pretrained network: adapters and the head, beside a frozen base."""

    title = "Adapters of a pretrained network ([more](pretrained.md))"

    kind: Literal["none", "head", "lora", "ia3", "prompt"] = key(
        "none",
        "what is trained: the whole network; its last block; or beside that block LoRA, IA³ or a prompt's vectors",
    )
    rank: int = key(8, "r, rank of LoRA's update B·A of a layer's weights", ge=1, where="adapter.kind=lora")
    alpha: float = key(
        16.0, "α, LoRA's update is multiplied by α/r, with `adapter.rslora` by α/√r", gt=0, where="adapter.kind=lora"
    )
    targets: str = key(
        "",
        'ends of the names of the layers that get LoRA or IA³, separated by commas; "": as peft has them for the '
        "architecture",
        values='names such as `"query,value"`; ""',
    )
    dropout: float = key(0.0, "share of a LoRA layer's inputs that training sets to zero", ge=0, lt=1)
    rslora: bool = key(False, "scale LoRA by α/√r (Kalajdzievski 2023)")
    dora: bool = key(False, "LoRA of directions, with a trained magnitude of each output (DoRA, Liu et al. 2024)")
    tokens: int = key(20, "for `kind = prompt`: vectors in front of a text", ge=1, where="adapter.kind=prompt")
    fixed: Literal["", "A"] = key("", 'LoRA matrices that stay as they are drawn, on all clients; "": none')
    correction: bool = key(
        False, "LoRA: whether the server adds a matrix to the weights of each adapted layer; methods that do set it"
    )

    @property
    def scale(self) -> float:
        """What LoRA's update B·A is multiplied by: α/r, or α/√r."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @model_validator(mode="after")
    def _has_what_it_is_about(self) -> AdapterSettings:
        for name, wrong in (
            ("rslora", self.rslora),
            ("dora", self.dora),
            ("dropout", bool(self.dropout)),
            ("fixed", bool(self.fixed)),
            ("correction", self.correction),
        ):
            if wrong and self.kind != "lora":
                raise ValueError(f"{name} is for kind = 'lora' (found: kind = '{self.kind}')")
        if self.targets and self.kind not in ("lora", "ia3"):
            raise ValueError(f"targets is for kind = 'lora' and 'ia3' (found: kind = '{self.kind}')")
        return self


class TreesSettings(Section):
    """The size of an ensemble of trees."""

    title = "Boosted trees ([more](methods/trees.md))"

    number: int = key(
        100, "the most boosting rounds, each with a tree, or one for each of several classes", ge=1, le=10_000,
        where="model=trees", also="n-estimators num-boost-round",
    )  # fmt: skip
    depth: int = key(4, "levels of splits of each tree", ge=1, le=12, where="model=trees", also="max-depth")


class NetworkSettings(Section):
    """The keys that say what the network is, and with which parameters it starts."""

    title = "The network"

    model: str = key(
        "mlp",
        "the network; `centers` is for clustering, `trees` for method `trees`; one of your own is "
        "`package.module:function` ([how](models.md))",
        values=", ".join(
            f"`{name}`"
            for name in (*NETWORKS.own, "torchvision:…", "timm:…", "transformers:…", "package.module:function")
        ),
        also="network net architecture",
    )
    weights: Annotated[str, AfterValidator(_check_weights)] = key(
        "",
        'pretrained weights of a network of torchvision, timm or your own; "": drawn from the seed '
        "([more](pretrained.md#weights))",
        values="`.safetensors` file",
    )
    pooling: Literal["auto", "mean", "first", "last"] = key(
        "auto",
        "what the head of a transformer sees of a text: the mean of its tokens, the first, or the last; `auto`: as the "
        "model's folder says ([more](pretrained.md#pooling))",
    )
    gradient_checkpointing: bool = key(
        False,
        "for transformers: keep each layer's input alone, and compute the layer once more for its gradient: less "
        "memory, about a third more time ([more](pretrained.md#larger-models))",
    )
    adapter: AdapterSettings = AdapterSettings()
    trees: TreesSettings = TreesSettings()

    @property
    def based(self) -> bool:
        """Whether the frozen parameters are those of files that every side of a run has of its own."""
        return bool(self.adapter.kind != "none" and (self.weights or named_folder(self.model)))

    def given(self) -> dict[str, Any]:
        """Return the keys besides ``model`` that a trained model depends on, where they differ from their defaults."""
        without = {"model", "gradient_checkpointing"}  # which changes no number
        without |= set() if self.based else {"weights"}  # which a model that is trained whole has itself
        kept = self.model_dump(include={*NetworkSettings.model_fields}, exclude=without, exclude_defaults=True)
        return {name: value for name, value in kept.items() if value}
