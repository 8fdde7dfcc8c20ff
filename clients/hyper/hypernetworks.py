"""Keys of methods that generate clients' models with a hypernetwork: PeFLL, pFedHN."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class HyperNetworkHyper(Section):
    """Keys of the hypernetwork on the server, and of its training."""

    descriptor_size: int = key(0, "l, length of a descriptor; 0: a quarter of `num-clients`", ge=0)
    hidden_layers: int = key(3, "layers between the hypernetwork's first and its output layers", ge=0)
    hidden_width: int = key(100, "width of these layers", ge=1)
    server_max_grad_norm: float = key(1.0, "norm to which the averaged update is clipped; 0: no clipping", ge=0)
    hypernetwork_penalty: float = key(0.001, "λ_h, weight of the hypernetwork's squared norm", ge=0)
    model_penalty: float = key(0.0, "λ_θ, weight of a client model's squared norm in its objective", ge=0)


class PeFLLHyper(HyperNetworkHyper):
    """Keys ``pefll.*``."""

    embedding: Literal["linear", "cnn", "cnn-unlabeled", "lstm"] = key(
        "linear",
        "embedding network φ: linear in the label; LeNet on image and label, or on the image; LSTM on text and label",
    )
    embedding_penalty: float = key(0.001, "λ_v, weight of the embedding network's squared norm", ge=0)
    descriptor_batch: int = key(32, "number of examples from which a descriptor is computed in training", ge=1)
    test_batch: int = key(
        0, "number of examples from which a descriptor is computed before a test; 0: all training examples", ge=0
    )
    normalize: Literal["none", "together", "each"] = key(
        "together",
        "standardise descriptors with mean and standard deviation of the first ones: over all entries together, or "
        "for each entry separately",
    )
    keep_descriptors: bool = key(False, "write the descriptors of every evaluation to the run's folder")
    mask_labels: bool = key(False, "never predict a class of which the client has no training example")


class PFedHNHyper(HyperNetworkHyper):
    """Keys ``pfedhn.*``."""

    server_max_grad_norm: float = key(0.0, "norm to which the averaged update is clipped; 0: no clipping", ge=0)
    hypernetwork_penalty: float = key(0.0, "λ_h, weight of the hypernetwork's squared norm", ge=0)
    descriptor_penalty: float = key(0.0, "weight of a descriptor's squared norm", ge=0)
    descriptor_learning_rate: float = key(
        0.0, "learning rate of descriptors on the server; 0: `server-learning-rate`", ge=0
    )
    new_client_exchanges: int = key(
        20, "number of exchanges that fit the descriptor of a client that has never trained", ge=0
    )
