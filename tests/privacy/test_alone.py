"""Per-example gradients against those of each example by itself: which networks of others Opacus gets wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from opacus.layers import DPLSTM, DPMultiheadAttention
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.text import VOCABULARY_SIZE
from florilegium.models.dry_run import random_inputs
from florilegium.models.networks import build
from florilegium.privacy.alone import unlike_alone
from tests.runs import Runs
from tests.support import config


class Reader(nn.Module):
    """An embedding and Opacus' LSTM on sequences that end at the first zero; ``packed`` in their own lengths."""

    def __init__(self, *, packed: bool, padding: int | None = None) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(100, 4, padding_idx=padding), DPLSTM(4, 3, batch_first=True)
        self.last, self.packed = nn.Linear(3, 2), packed

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.table(x)
        if self.packed:
            lengths = (x != 0).long().cumprod(dim=1).sum(dim=1).clamp(min=1)
            vectors = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.lstm(vectors)
        out: Tensor = self.last(h[-1])
        return out


class Bags(nn.Module):
    """Sums of embeddings, as bags with offsets."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.EmbeddingBag(100, 4, mode="sum"), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.table(x.flatten(), torch.arange(0, x.numel(), x.shape[1])))
        return out


class Attention(nn.Module):
    """Attention with two heads over a sequence of vectors."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.attend, self.last = kind(8, 2, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.attend(x, x, x)[0].mean(dim=1))
        return out


def _convolution(**keys: object) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, **keys), nn.Tanh(), nn.Flatten(), nn.Linear(192, 2))  # type: ignore[arg-type]


CODES, IMAGES = random_inputs((12,), codes=VOCABULARY_SIZE), random_inputs((2, 8, 8), codes=0)
WRONG = {
    "packed": (lambda: Reader(packed=True), CODES, "lstm"),
    "padding": (lambda: Reader(packed=False, padding=0), CODES, "table"),
    "bags": (Bags, CODES, "table"),
    "circular": (lambda: _convolution(padding_mode="circular"), IMAGES, "0.weight"),
    "reflected": (lambda: _convolution(padding_mode="reflect"), IMAGES, "0.weight"),
}
RIGHT = {
    "unpacked": (lambda: Reader(packed=False), CODES),
    "zeros": (_convolution, IMAGES),
    "dropout": (lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 2)), IMAGES),
    "lenet": (lambda: build("lenet", (1, 16, 16), 10, 1), random_inputs((1, 16, 16), codes=0)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_opacus_gets_wrong_is_refused(name: str) -> None:
    make, x, where = WRONG[name]
    torch.manual_seed(0)
    assert unlike_alone(make().train(), x, ghost=False).startswith(where)


@pytest.mark.parametrize("ghost", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_let_through(name: str, ghost: bool) -> None:
    make, x = RIGHT[name]
    torch.manual_seed(0)
    network = make().train()
    before = [parameter.detach().clone() for parameter in network.parameters()]
    assert unlike_alone(network, x, ghost=ghost) == ""
    assert all(map(torch.equal, before, network.parameters()))
    assert all(module.training for module in network.modules())
    assert not any(vars(parameter).keys() & {"grad_sample", "_norm_sample"} for parameter in network.parameters())


@pytest.mark.parametrize("name", ["circular", "reflected"])
def test_norms_of_ghost_clipping_are_compared(name: str) -> None:
    torch.manual_seed(0)
    assert unlike_alone(WRONG[name][0]().train(), IMAGES, ghost=True) == "the norm"


def test_attention_of_pytorch_is_refused_and_never_replaced() -> None:
    """The layer that Opacus offers instead returns something else with several heads."""
    torch.manual_seed(0)
    own, theirs = Attention(nn.MultiheadAttention), Attention(DPMultiheadAttention)
    theirs.attend.load_state_dict(own.attend.state_dict())
    theirs.last.load_state_dict(own.last.state_dict())
    x = torch.randn(3, 5, 8)
    assert float((own(x) - theirs(x)).detach().abs().max()) > 0.01
    with pytest.raises(RunError, match=r"Opacus fails on it: .* missing 2 required"):
        unlike_alone(own.train(), x, ghost=False)
    assert type(own.attend) is nn.MultiheadAttention


def test_a_parameter_without_a_part_in_the_outputs_is_named() -> None:
    class Idle(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self[1](self[0](x))
            return out

    network = Idle(nn.Flatten(), nn.Linear(128, 2), nn.Linear(3, 3))
    with pytest.raises(RunError, match=r"'2\.weight' has no part in its outputs"):
        unlike_alone(network.train(), IMAGES, ghost=False)


def test_a_run_is_refused_before_it_starts(tmp_path, monkeypatch) -> None:
    (tmp_path / "circular_network.py").write_text(
        "from torch import nn\n\n\n"
        "def make(shape, classes):\n"
        "    first = nn.Conv2d(shape[0], 2, 3, padding=1, padding_mode='circular')\n"
        "    return nn.Sequential(first, nn.ReLU(), nn.Flatten(), nn.Linear(128, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = Runs(tmp_path, config(**{"privacy.unit": "example", "privacy.noise-multiplier": 1.0, "rounds": 1}))
    with pytest.raises(ConfigurationError, match=r"'example': Opacus computes wrong gradients .* \('0.weight' is"):
        run("refused", model="circular_network:make")
