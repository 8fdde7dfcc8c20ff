"""Reconstruct training images from single updates, which a server sees where nothing hides or blurs them.

A client of the run's network takes one step of SGD on one image. From the change of the model follow, exactly, the
label, and the image too if the first layer with parameters is dense: its weights' gradient is (bias gradient)·xᵀ
(Phong et al. 2018). For any network the image can be sought whose gradient points in the same direction (Geiping,
Bauermeister, Dröge, Moeller, *Inverting Gradients*, NeurIPS 2020: cosine distance, total variation, signed Adam).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from florilegium.apps.runs.personal import reopened
from florilegium.apps.settings.configuration import Settings
from florilegium.clients.core.network import network_for
from florilegium.clients.core.optimizers import Adam
from florilegium.clients.core.state import ClientState
from florilegium.clients.core.wire import NOISE, WITHIN_NOISE, Work
from florilegium.clients.fedavg import FedAvgClient
from florilegium.clients.layers.noise import Contribution
from florilegium.common.errors import RunError
from florilegium.common.figures import ShownFigure
from florilegium.common.files import write_text
from florilegium.common.pages import table_of, write_picture
from florilegium.common.seeds import torch_generator
from florilegium.common.settings import Section
from florilegium.models.parameters import Arrays, exchanged, get_arrays, set_arrays
from florilegium.partitions.clientdata import CPU, ClientData, Examples
from florilegium.partitions.loading import dataset_of
from florilegium.privacy.settings import PrivacySettings

IMAGES = 4
STEPS, RATES, VARIATION = 100, (0.1, 0.02, 0.004), 1e-3
"""Steps of the search at each step size, step sizes as shares of the range of pixels, weight of total variation."""
MULTIPLIERS = (None, 0.0, 0.01, 0.1, 1.0)
"""Noise multipliers z of the protections that are tried; None: the update is not even clipped."""


def update_of(network: nn.Module, image: Tensor, label: Tensor, settings: Settings) -> Arrays:
    """Return the change (returned − sent) of ``network``'s arrays by one step of a client with a single image.

    Args:
        network: the network; its contents are kept.
        image, label: the client's example, (1, *shape) and (1,).
        settings: the run's configuration, which gives the learning rate.
    """
    s = settings.model_copy(update={
        "local_epochs": 1, "local_steps": 0, "batch_size": 1, "optimizer": "sgd", "weight_decay": 0.0,
        "max_grad_norm": 0.0, "learning_rate_decay": 1.0, "privacy": PrivacySettings(),
    })  # fmt: skip
    one, sent = Examples(image, label), get_arrays(network)
    data = ClientData(lambda: one, lambda: one, labeled=True, simulated=True, device=CPU)
    with TemporaryDirectory() as folder:
        state = ClientState(Path(folder), 1, [], 0, "0")
        returned = FedAvgClient("0", data, network, sent, state, s, Section(), Work(1)).perform("train", sent, {})
    set_arrays(network, sent)
    return {name: array.astype(np.float64) - sent[name] for name, array in returned.arrays.items()}


def protected(update: Arrays, clip_norm: float, multiplier: float | None) -> Arrays:
    """Return an update as a device with client-level privacy returns it: clipped, with noise z·C; None: as it is."""
    if multiplier is None:
        return update
    keys = PrivacySettings(unit="client", clip_norm=clip_norm, noise_at="device", sampling="fixed")
    return Contribution(keys, {NOISE: multiplier * clip_norm, WITHIN_NOISE: 0.0})(dict(update))


def first_dense(network: nn.Module, shape: Sequence[int]) -> str:
    """Return the name of the dense layer with a bias that receives the flat input itself; "" if there is none."""
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            return name if module.in_features == math.prod(shape) and module.bias is not None else ""
        if [*module.parameters(recurse=False)]:
            return ""
    return ""


def from_dense(update: Arrays, layer: str, shape: Sequence[int]) -> Tensor:
    """Return the input of a dense layer from the change of its weights and its bias by one example, (1, *shape).

    Unit i has the gradients g_i·xᵀ and g_i, whose quotient is x. Least squares over all units lets noise cancel.
    """
    weights, bias = update[f"{layer}.weight"], update[f"{layer}.bias"]
    square = float(bias @ bias)
    x = bias @ weights / square if square else np.zeros(weights.shape[1])
    return torch.from_numpy(np.asarray(x)).float().reshape(1, *shape)


def label_from(update: Arrays) -> Tensor:
    """Return the example's class, (1,): of the last layer's biases, cross-entropy raises this one alone."""
    bias = [array for array in update.values() if array.ndim == 1][-1]
    return torch.tensor([int(np.argmax(bias))])


def invert(
    network: nn.Module, update: Arrays, low: Tensor, high: Tensor, shape: Sequence[int], generator: torch.Generator
) -> Tensor:
    """Return an image (1, *shape) by which a training step points as ``update`` does.

    Args:
        network: the network before the update.
        update: the change of its arrays.
        low, high: the range of pixels, in the network's units.
        shape: channels, height and width.
        generator: draws the image to begin with.
    """
    known = {name: p for name, p in network.named_parameters() if p.requires_grad}
    target = torch.cat([torch.from_numpy(-update[name]).float().flatten() for name in known])
    label, span = label_from(update), float(high - low)
    x = (low + span * torch.rand(1, *shape, generator=generator)).requires_grad_()
    network.eval()
    for rate in RATES:
        optimizer = Adam([x], rate * span, 0.0)
        for _ in range(STEPS):
            gradient = torch.autograd.grad(cross_entropy(network(x), label), [*known.values()], create_graph=True)
            flat = torch.cat([part.flatten() for part in gradient])
            rough = (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
            distance = 1 - cosine_similarity(flat, target, dim=0) + VARIATION * rough / span
            x.grad = torch.autograd.grad(distance, x)[0].sign()
            optimizer.step()
            with torch.no_grad():
                x.clamp_(low, high)
    return x.detach()


@dataclass(frozen=True)
class Gradient:
    """Reconstructed images, for each of ``MULTIPLIERS``.

    Attributes:
        true: the images, (n, channels, height, width).
        dense: those that follow from a dense first layer, (z, n, …); None if the network has none.
        searched: those that were found by their gradient, (z, n, …).
        low, high: the range of pixels.
        clip_norm: C.
    """

    true: Tensor
    dense: Tensor | None
    searched: Tensor
    low: float
    high: float
    clip_norm: float

    @property
    def ways(self) -> dict[str, Tensor]:
        """The reconstructions, by how they were made."""
        found = {"gradient matching": self.searched}
        return found if self.dense is None else {"first dense layer": self.dense, **found}

    def table(self) -> str:
        """Return mean PSNR in dB and mean cosine, for each protection and each way, as a Markdown table."""
        rows = [[f"update of one image, C = {self.clip_norm:g}", *self.ways]]
        for index, multiplier in enumerate(MULTIPLIERS):
            cells = [
                f"{psnr(self.true, images[index], self.high - self.low):.1f} dB, cosine "
                f"{float(cosine_similarity(self.true.flatten(1), images[index].flatten(1)).mean()):.3f}"
                for images in self.ways.values()
            ]
            rows.append([_protection(multiplier), *cells])
        return table_of(rows[0], rows[1:])

    def picture(self) -> Figure:
        """Return the true images above their reconstructions."""
        lines = [("true", self.true)]
        for way, images in self.ways.items():
            lines += [(f"{way},\n{_protection(z)}", images[i]) for i, z in enumerate(MULTIPLIERS) if z != 0.0]
        count = len(self.true)
        figure = ShownFigure(1.1 * count + 2.4, 1.1 * len(lines))
        for axes, (title, images) in zip(figure.subplots(len(lines), count, squeeze=False), lines, strict=True):
            axes[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)
            for place, image in zip(axes, images, strict=True):
                shown = ((image - self.low) / (self.high - self.low)).clamp(0, 1).permute(1, 2, 0).numpy()
                place.imshow(shown[..., 0] if shown.shape[-1] == 1 else shown, cmap="gray", vmin=0, vmax=1)
                place.set(xticks=[], yticks=[])
        return figure


def psnr(true: Tensor, found: Tensor, span: float) -> float:
    """Return the mean over images of 10·log₁₀(span² ÷ mean squared error), in dB."""
    errors = (true - found).double().square().flatten(1).mean(dim=1)
    return float((10 * torch.log10(span**2 / errors.clamp_min(1e-30))).mean())


def _protection(multiplier: float | None) -> str:
    if multiplier is None:
        return "as it is"
    return f"clipped, z = {multiplier:g}" if multiplier else "clipped, no noise"


def attack(run: Path) -> Gradient:
    """Attack updates of the first images of a finished run's first client; write ``audit-gradient.png`` to its folder.

    The network is that of the run's first round.

    Raises:
        RunError: if the run does not classify images, its clients do not share the whole network, or the client has no
            test images to know the range of pixels from.
    """
    with reopened(run) as again:
        s, data = again.settings, again.host.data(again.strategy.clients.ids("seen")[0])
        spec = dataset_of(s)
        network = network_for(spec, s, s.seed)
        set_arrays(network, again.strategy.federation.start.frozen.arrays)
        if spec.kind != "image" or spec.learned.num_strata < 2:
            raise RunError("reconstruction from single updates is for networks that classify images")
        if again.strategy.server_part(get_arrays(network)).keys() != exchanged(network).keys():
            raise RunError(f"clients of method '{s.method}' do not share the whole network, which the attack needs")
        if not len(data.test):
            raise RunError("the first client has no test images, from which the attack would know the range of pixels")
        x, y = data.train.x[:IMAGES].cpu(), data.train.y[:IMAGES].cpu()
        low, high = data.test.x.min().cpu(), data.test.x.max().cpu()
    layer, C = first_dense(network, spec.shape), s.privacy.clip_norm if math.isfinite(s.privacy.clip_norm) else 1.0
    dense, searched = [], []
    for multiplier in MULTIPLIERS:
        updates = [protected(update_of(network, x[[i]], y[[i]], s), C, multiplier) for i in range(len(x))]
        dense += [from_dense(update, layer, spec.shape) for update in updates if layer]
        searched += [
            invert(network, update, low, high, spec.shape, torch_generator(s.seed, "gradient", str(i)))
            for i, update in enumerate(updates)
        ]
    shape = (len(MULTIPLIERS), *x.shape)
    seen = torch.cat(dense).reshape(shape) if dense else None
    result = Gradient(x, seen, torch.cat(searched).reshape(shape), float(low), float(high), C)
    write_text(run / "audit-gradient.md", result.table())
    picture = result.picture()
    write_picture(picture, run / "audit-gradient.png", 110)
    return result
