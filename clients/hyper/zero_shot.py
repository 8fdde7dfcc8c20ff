"""Keys of HyperFedZero."""

from __future__ import annotations

from florilegium.common.settings import Section, key


class HyperFedZeroHyper(Section):
    """Keys ``hyperfedzero.*``."""

    embedding_size: int = key(4, "m, length of a distribution embedding", ge=2)
    scale: float = key(8.0, "κ, factor on the extractor's outputs; small ones let embeddings collapse", gt=0)
    balance: float = key(0.03, "α, weight of the variance over the mean of a batch's summed embeddings", ge=0)
    entropy: float = key(0.1, "β, weight of the embeddings' mean entropy", ge=0)
    hidden_layers: int = key(1, "layers of the hypernetwork between its first and its last", ge=0)
    hidden_width: int = key(64, "width of these layers", ge=1)
    chunk_size: int = key(512, "number of parameters that the hypernetwork makes at a time", ge=1)
    chunk_embedding_size: int = key(16, "length of a chunk's embedding", ge=1)
