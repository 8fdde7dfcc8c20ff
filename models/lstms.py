"""LSTMs for text: on characters, and on word vectors (PPFE's network for Sent140)."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from florilegium.common.text import VOCABULARY_SIZE


class LastHidden(nn.Module):
    """An LSTM that returns the output of the last time step only, (batch, hidden), for inputs (batch, time, inputs)."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last output."""
        return self.lstm(x)[0][:, -1]


def char_lstm(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Embedding of 8, two LSTM layers of 256, C outputs (LEAF's Shakespeare network, Caldas et al. 2018).

    Inputs are integer character codes of shape (batch, length).
    """
    if len(shape) != 1:
        raise ValueError(f"the character LSTM needs sequences of character codes, not inputs of shape {shape}")
    return nn.Sequential(
        OrderedDict(embedding=nn.Embedding(VOCABULARY_SIZE, 8), lstm=LastHidden(8, 256, 2), fc=nn.Linear(256, classes))
    )


class EachHidden(nn.Module):
    """An LSTM that returns the output of every time step, (batch, hidden, time), for inputs (batch, time, inputs)."""

    def __init__(self, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs."""
        outputs: Tensor = self.lstm(x)[0]
        return outputs.transpose(1, 2)


def char_lstm_steps(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """The layers of ``char-lstm``, with C outputs for each position, (batch, C, length); for the next token and labels.

    Inputs are integer codes of characters or tokens, of shape (batch, length).
    """
    if len(shape) != 1:
        raise ValueError(f"the character LSTM needs sequences of codes, not inputs of shape {shape}")
    return nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(VOCABULARY_SIZE, 8), lstm=EachHidden(8, 256, 2), fc=nn.Conv1d(256, classes, 1)
        )
    )


def word_lstm(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """One LSTM layer of 128, then dense layers of 64, 32, C (PPFE, appendix A.1, which gives no layer sizes).

    Inputs are word vectors of shape (batch, length, numbers).
    """
    if len(shape) != 2:
        raise ValueError(f"the word LSTM needs sequences of word vectors, not inputs of shape {shape}")
    return nn.Sequential(
        OrderedDict(
            lstm=LastHidden(shape[1], 128, 1),
            fc1=nn.Sequential(nn.Linear(128, 64), nn.ReLU()),
            fc2=nn.Sequential(nn.Linear(64, 32), nn.ReLU()),
            fc3=nn.Linear(32, classes),
        )
    )
