"""Character-level LSTM for text: next-character prediction and short-message classification."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from common.text import VOCABULARY_SIZE


class _LastHidden(nn.Module):
    """A two-layer LSTM that passes on the output of the last time step."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, num_layers=2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0][:, -1]


def char_lstm(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Embedding of 8, two LSTM layers of 256, C outputs (LEAF's Shakespeare network, Caldas et al. 2018).

    Inputs are integer character codes of shape (batch, length).
    """
    if len(shape) != 1:
        raise ValueError(f"the character LSTM needs sequences of character codes, not inputs of shape {shape}")
    return nn.Sequential(
        OrderedDict(embedding=nn.Embedding(VOCABULARY_SIZE, 8), lstm=_LastHidden(8, 256), fc=nn.Linear(256, classes))
    )
