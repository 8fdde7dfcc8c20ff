"""Keys of methods that make clients' models by a hypernetwork: PeFLL, pFedHN."""

from __future__ import annotations

from typing import Literal

from florilegium.common.settings import Section, key


class HyperNetworkHyper(Section):
    """What makes clients' models on the server, and how it learns."""

    descriptor_size: int = key(0, "l, length of a descriptor; 0: a quarter of the clients", ge=0)
    hidden_layers: int = key(3, "layers between the hypernetwork's first and its output layers", ge=0)
    hidden_width: int = key(100, "width of these layers", ge=1)
    server_max_grad_norm: float = key(1.0, "bound on the norm of the averaged update; 0: none", ge=0)
    hypernetwork_penalty: float = key(0.001, "λ_h, weight of the hypernetwork's squared norm", ge=0)
    model_penalty: float = key(0.0, "λ_θ, weight of a client model's squared norm in its objective", ge=0)


class PeFLLHyper(HyperNetworkHyper):
    """Keys ``pefll.*``."""

    embedding: Literal["linear", "cnn", "cnn-unlabeled", "lstm"] = key(
        "linear", "φ: of the label alone; LeNet on image and label, or on the image alone; LSTM on text and label"
    )
    embedding_penalty: float = key(0.001, "λ_v, weight of the embedding network's squared norm", ge=0)
    descriptor_batch: int = key(32, "examples that a descriptor is made of in training", ge=1)
    test_batch: int = key(0, "the same before a test; 0: all training examples of the client", ge=0)
    normalize: Literal["none", "together", "each"] = key(
        "together",
        "subtract from descriptors the mean, and divide by the deviation, of the first: of all their "
        "numbers together, or of each by itself",
    )
    keep_descriptors: bool = key(False, "write the descriptors of every evaluation to the run's folder")
    mask_labels: bool = key(False, "never predict classes that a client's training examples do not have")


class PFedHNHyper(HyperNetworkHyper):
    """Keys ``pfedhn.*``."""

    server_max_grad_norm: float = key(0.0, "bound on the norm of the averaged update; 0: none", ge=0)
    hypernetwork_penalty: float = key(0.0, "λ_h, weight of the hypernetwork's squared norm", ge=0)
    descriptor_penalty: float = key(0.0, "weight of a descriptor's squared norm", ge=0)
    descriptor_learning_rate: float = key(0.0, "the server's step size for descriptors; 0: server-learning-rate", ge=0)
    new_client_exchanges: int = key(20, "exchanges that fit the descriptor of a client never seen", ge=0)
