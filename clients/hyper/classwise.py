"""Keys of methods that exchange a number or a vector per class: FedProto, FedDistill, FedGen, prior shift."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class FedProtoHyper(Section):
    """Keys ``fedproto.*``."""

    regularization: float = key(1.0, "λ, weight of the squared distance to the global prototypes; 0: local", ge=0)
    predict: Literal["prototypes", "classifier"] = key(
        "prototypes", "what clients predict with: the nearest global prototype, or their own classifier"
    )
    collect: Literal["after", "during"] = key(
        "after", "when features are collected for prototypes: after training (the paper), or during it (PFLlib)"
    )


class FedDistillHyper(Section):
    """Keys ``feddistill.*``."""

    regularization: float = key(1.0, "γ, weight of the distillation loss; 0 is local training", ge=0)
    distance: Literal["cross-entropy", "squared"] = key(
        "cross-entropy",
        "distillation loss: cross-entropy to the softmax of the others' mean logits (the paper), or the mean squared "
        "difference of logits (PFLlib)",
    )


class FedGenHyper(Section):
    """Keys ``fedgen.*``."""

    generated_weight: float = key(1.0, "α, weight of clients' cross-entropy on generated features", ge=0)
    latent_weight: float = key(
        1.0, "β, weight of the divergence between predictions for an example and for generated features of its class",
        ge=0,
    )  # fmt: skip
    decay: float = key(0.98, "factor on α and β after every round", gt=0, le=1)
    noise_size: int = key(32, "length of the generator's noise ε", ge=1)
    generator_width: int = key(256, "units of the generator's hidden layer", ge=1)
    generator_steps: int = key(50, "training steps of the generator per round", ge=0)
    generator_batch: int = key(32, "generated features in a training step of the generator", ge=2)
    generator_learning_rate: float = key(0.0003, "learning rate of the generator (Adam)", gt=0)
    diversity: float = key(1.0, "weight of the generator's diversity loss", ge=0)


class OwnPriorHyper(Section):
    """Keys of methods with the logits of a client's own class prior."""

    smoothing: float = key(
        0.05, "examples per class, of the federation's class prior, that a client adds to its own", ge=0
    )
    iterations: int = key(100, "most steps in which a client without labels estimates its class prior", ge=0)


class PriorShiftHyper(OwnPriorHyper):
    """Keys ``prior-shift.*``."""

    federation: Literal["measured", "uniform", "adjusted"] = key(
        "measured",
        "class prior of the shared model: measured, by frequencies that clients send; taken to be `uniform`; or "
        "`adjusted`: uniform, as clients train with their own prior's logits",
    )
    estimate: Literal["labels", "inputs"] = key(
        "labels", "before a test, the class prior of a client with labels: counted, or estimated as if it had none"
    )
