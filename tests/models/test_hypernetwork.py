"""Hypernetworks and embedding networks: sizes by the papers' tables, what they look at, and that seeds decide."""

from __future__ import annotations

import pytest
import torch

from florilegium.common.errors import ConfigurationError
from florilegium.models.embedding import build_embedding
from florilegium.models.hypernetwork import HyperNetwork
from florilegium.models.networks import build
from florilegium.models.parameters import exchanged


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


class TestHyperNetwork:
    @pytest.mark.parametrize("hidden", [1, 3, 5])
    def test_size_is_that_of_table_b3(self, hidden: int) -> None:
        # l×100, `hidden` times 100×100, 100×D, each with biases; D = 121,182 numbers of LeNet for ten classes.
        lenet = build("lenet", (3, 32, 32), 10, 1)
        shapes = {name: tuple(tensor.shape) for name, tensor in exchanged(lenet).items()}
        assert _size(lenet) == 1_216 + 12_832 + 96_120 + 10_164 + 850
        network = HyperNetwork(25, shapes, hidden, 100, 1)
        assert _size(network) == 26 * 100 + hidden * 101 * 100 + 101 * 121_182

    def test_every_tensor_is_an_affine_map_of_the_last_features(self) -> None:
        network = HyperNetwork(3, {"w": (2, 4), "b": (2,)}, 1, 5, 1)
        v = torch.tensor([[0.3, -1.0, 2.0], [1.0, 0.0, 0.5]])
        first, _, second, _ = network.trunk
        features = torch.relu(second(torch.relu(first(v))))
        made = network(v)
        assert made["w"].shape == (2, 2, 4)
        torch.testing.assert_close(
            made["w"].flatten(1), features @ network.outputs[0].weight.T + network.outputs[0].bias
        )
        torch.testing.assert_close(made["b"], features @ network.outputs[1].weight.T + network.outputs[1].bias)

    def test_clients_are_made_independently(self) -> None:
        network = HyperNetwork(3, {"w": (2, 4)}, 1, 5, 1)
        v = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(network(v)["w"][2:3], network(v[2:3])["w"])

    def test_there_must_be_something_to_make(self) -> None:
        with pytest.raises(ValueError, match="has none"):
            HyperNetwork(3, {}, 1, 5, 1)
        with pytest.raises(ValueError, match="at least one number"):
            HyperNetwork(0, {"w": (2, 4)}, 1, 5, 1)

    def test_the_seed_decides_and_nothing_else_is_drawn(self) -> None:
        before = torch.random.get_rng_state()
        one, same, other = (HyperNetwork(3, {"w": (2,)}, 1, 5, seed).trunk[0].weight for seed in (1, 1, 2))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert torch.equal(before, torch.random.get_rng_state())


class TestEmbedding:
    def test_the_linear_one_is_a_column_for_each_class(self) -> None:
        φ = build_embedding("linear", (1, 8, 8), 10, 4, 1)
        weight, bias = φ.network[0][1].weight, φ.network[0][1].bias
        made = φ(torch.randn(3, 1, 8, 8), torch.tensor([7, 0, 7]))
        torch.testing.assert_close(made, weight.T[[7, 0, 7]] + bias)

    def test_the_convolutional_one_is_lenet_with_a_plane_for_each_class(self) -> None:
        # Table B.2 with l outputs and C more input channels.
        φ = build_embedding("cnn", (3, 32, 32), 10, 25, 1)
        assert _size(φ) == 13 * 16 * 25 + 16 + 12_832 + 96_120 + 10_164 + 85 * 25
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        planes = torch.zeros(2, 10, 32, 32)
        planes[0, 4], planes[1, 9] = 1, 1
        torch.testing.assert_close(φ(x, torch.tensor([4, 9])), φ.network(torch.cat([x, planes], dim=1)))

    def test_the_unlabeled_one_does_not_look_at_labels(self) -> None:
        φ = build_embedding("cnn-unlabeled", (3, 32, 32), 10, 5, 1)
        x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        assert torch.equal(φ(x, torch.tensor([0, 1])), φ(x, torch.tensor([5, 5])))

    def test_the_recurrent_one_reads_the_class_as_one_more_character(self) -> None:
        φ = build_embedding("lstm", (80,), 80, 5, 1)
        x = torch.arange(160).reshape(2, 80) % 80
        whole = torch.cat([x, torch.tensor([[3], [4]])], dim=1)
        assert torch.equal(φ(x, torch.tensor([3, 4])), φ.network(whole))

    @pytest.mark.parametrize(
        ("kind", "shape", "said"),
        [
            ("cnn", (108,), r"pefll.embedding: 'cnn' needs images of at least 16×16 pixels, .* shape \(108,\)"),
            ("lstm", (3, 32, 32), "pefll.embedding: 'lstm' needs text"),
            ("cnn", (1, 15, 28), r"pefll.embedding: 'cnn' needs images of at least 16×16 pixels, .*\(1, 15, 28\)"),
            ("cnn-unlabeled", (1, 8, 8), "pefll.embedding: 'cnn-unlabeled' needs images"),
        ],
    )
    def test_inputs_that_do_not_fit_are_refused(self, kind: str, shape: tuple[int, ...], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            build_embedding(kind, shape, 10, 5, 1)
