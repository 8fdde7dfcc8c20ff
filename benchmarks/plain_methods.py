"""Rounds of methods that compute much outside of modules, as one would write them in plain PyTorch.

Five clients train for an epoch, one after the other; FedAMP's server mixes their models before. There are no averages,
messages, files, checks or metrics. Networks, memory layout and the hyper-parameters' values are the suite's.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy, softplus

from florilegium.models.networks import build

CLIENTS, IMAGES, CLASSES, BATCH, RATE = 5, 400, 10, 10, 0.01
SHAPE = (3, 32, 32)


def _network(outputs: int = CLASSES) -> nn.Sequential:
    return build("lenet", SHAPE, outputs, seed=1)


def _data() -> tuple[Tensor, Tensor]:
    x = torch.randn(IMAGES, *SHAPE).contiguous(memory_format=torch.channels_last)
    return x, torch.randint(0, CLASSES, (IMAGES,))


def _batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for rows in torch.randperm(len(x)).split(BATCH):
        yield x[rows], y[rows]


def _flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@torch.no_grad()
def _fill(model: nn.Module, vector: Tensor) -> None:
    parameters = _parameters(model)
    for parameter, part in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))


def _parameters(*modules: nn.Module) -> list[Tensor]:
    return [parameter for module in modules for parameter in module.parameters()]


def _descend(parameters: list[Tensor], loss: Tensor) -> None:
    """Take a step of SGD."""
    slopes = torch.autograd.grad(loss, parameters)
    with torch.no_grad():
        torch._foreach_add_(parameters, slopes, alpha=-RATE)


def _train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    parameters = _parameters(model)
    for images, labels in _batches(x, y):
        _descend(parameters, cross_entropy(model(images), labels))


def _train_corrected(model: nn.Module, x: Tensor, y: Tensor, pull: float, memory: list[Tensor] | None = None) -> None:
    """Train under a pull towards where the model starts, and along a memory of gradients."""
    parameters = _parameters(model)
    anchors = [p.detach().clone() for p in parameters]
    for images, labels in _batches(x, y):
        slopes = [*torch.autograd.grad(cross_entropy(model(images), labels), parameters)]
        with torch.no_grad():
            torch._foreach_add_(slopes, torch._foreach_sub(parameters, anchors), alpha=pull)
            if memory is not None:
                torch._foreach_sub_(slopes, memory)
            torch._foreach_add_(parameters, slopes, alpha=-RATE)
    if memory is not None:
        with torch.no_grad():
            torch._foreach_add_(memory, torch._foreach_sub(parameters, anchors), alpha=-pull)


def fedala() -> float:
    """FedALA, a round after the first with weights: W is learned for an epoch on 80 % of the images."""
    model, (x, y) = _network(), _data()
    body, head = model[:-1], model[-1]
    received = copy.deepcopy(model.state_dict())
    last = _parameters(head)
    old, weights = [0.1 * torch.randn_like(p) for p in last], [torch.rand_like(p) for p in last]
    begun = time.perf_counter()
    for _ in range(CLIENTS):
        model.load_state_dict(received)
        new = [p.detach().clone() for p in last]
        with torch.no_grad():
            rows = torch.randperm(IMAGES)[: 4 * IMAGES // 5]
            features, labels = body(x[rows]), y[rows]
            for p, o, n, w in zip(last, old, new, weights, strict=True):
                p.copy_(torch.lerp(o, n, w))
        for some, their in _batches(features, labels):
            slopes = torch.autograd.grad(cross_entropy(head(some), their), last)
            with torch.no_grad():
                for p, slope, o, n, w in zip(last, slopes, old, new, weights, strict=True):
                    w.sub_(slope * (n - o)).clamp_(0, 1)
                    p.copy_(torch.lerp(o, n, w))
        _train(model, x, y)
    return time.perf_counter() - begun


def feddyn() -> float:
    """FedDyn: clients train under a pull towards the received model and along their memory of gradients."""
    model, (x, y) = _network(), _data()
    received = _flat(model)
    memories = [[0.01 * torch.randn_like(p) for p in _parameters(model)] for _ in range(CLIENTS)]
    begun = time.perf_counter()
    for memory in memories:
        _fill(model, received)
        _train_corrected(model, x, y, 0.01, memory)
    return time.perf_counter() - begun


def fedamp() -> float:
    """FedAMP: the server mixes the models by their distances; clients train under a pull towards the mixture."""
    model, (x, y) = _network(), _data()
    begun = time.perf_counter()
    models = torch.stack([_flat(model) for _ in range(CLIENTS)]).double()
    ξ = torch.exp(-(torch.cdist(models, models) ** 2) / 10).fill_diagonal_(0)
    ξ /= ξ.sum(dim=1, keepdim=True).clamp(min=1)
    for mixture in ((ξ + torch.diag(1 - ξ.sum(dim=1))) @ models).float():
        _fill(model, mixture)
        _train_corrected(model, x, y, 0.1)
    return time.perf_counter() - begun


def fedfomo() -> float:
    """FedFomo: the client compares four received models and its own on 20 % of its images, and trains on the others."""
    model, (x, y) = _network(), _data()
    share = IMAGES // 5
    bank = [_flat(model) * (1 + 0.01 * client) for client in range(CLIENTS)]
    begun = time.perf_counter()
    for _ in range(CLIENTS):
        start, losses = bank[0], []
        with torch.no_grad():
            for vector in [start, *bank]:
                _fill(model, vector)
                losses.append(float(cross_entropy(model(x[:share]), y[:share])))
        apart = torch.stack(bank).double() - start
        w = (losses[0] - torch.tensor(losses[1:]).double()).clamp(min=0) / apart.norm(dim=1).clamp(min=1e-9)
        _fill(model, start + w / w.sum().clamp(min=1e-9) @ apart)
        _train(model, x[share:], y[share:])
        _flat(model)
    return time.perf_counter() - begun


def apple() -> float:
    """APPLE: in each step the client combines five models, and learns its own and the weights of the combination."""
    model, (x, y) = _network(), _data()
    parameters = _parameters(model)
    received = torch.stack([_flat(model) for _ in range(CLIENTS)])
    begun = time.perf_counter()
    for _ in range(CLIENTS):
        models, initial = received.clone(), torch.full((CLIENTS,), 1 / CLIENTS)
        p = initial.clone()
        for images, labels in _batches(x, y):
            _fill(model, p @ models)
            slopes = torch.autograd.grad(cross_entropy(model(images), labels), parameters)
            slope = torch.cat([each.flatten() for each in slopes])
            along = models @ slope + 0.1 * (p - initial)
            models[0].sub_(slope, alpha=float(RATE * CLIENTS * p[0]))
            p.sub_(along, alpha=0.001)
        _fill(model, p @ models)
    return time.perf_counter() - begun


def feddistill() -> float:
    """FedDistill: logits are drawn towards the others' mean logits of the class, and summed by class."""
    model, (x, y) = _network(), _data()
    parameters = _parameters(model)
    probabilities, known = torch.randn(CLASSES, CLASSES).softmax(dim=1), torch.ones(CLASSES)
    begun = time.perf_counter()
    for _ in range(CLIENTS):
        sums, counts = torch.zeros(CLASSES, CLASSES), torch.zeros(CLASSES, dtype=torch.int64)
        for images, labels in _batches(x, y):
            logits = model(images)
            sums.index_add_(0, labels, logits.detach())
            counts += labels.bincount(minlength=CLASSES)
            distances = cross_entropy(logits, probabilities[labels], reduction="none")
            _descend(parameters, cross_entropy(logits, labels) + (known[labels] * distances).mean())
        sums /= counts.clamp(min=1)[:, None]
    return time.perf_counter() - begun


def hyperfedzero() -> float:
    """HyperFedZero: a network makes each image's classifier from an embedding that another one makes of the image."""
    m, width, chunk, own = 4, 64, 512, 16
    extractor, classifier, (x, y) = _network(2 * m), _network(), _data()
    names, shapes = zip(*((name, p.shape) for name, p in classifier.named_parameters()), strict=True)
    counts = [shape.numel() for shape in shapes]
    chunks = torch.randn(-(-sum(counts) // chunk), own, requires_grad=True)
    descriptor, code = nn.Linear(m, width, bias=False), nn.Linear(own, width)
    layers = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, chunk))
    parameters = [*_parameters(extractor, descriptor, code, layers), chunks]
    one = vmap(lambda made, image: functional_call(classifier, dict(zip(names, made, strict=True)), image[None])[0])
    begun = time.perf_counter()
    for _ in range(CLIENTS):
        for images, labels in _batches(x, y):
            f, noisy = extractor(images).chunk(2, dim=1)
            log_e = torch.log_softmax(8 * f + torch.randn(len(f), m) * softplus(noisy), dim=1)
            e = log_e.exp()
            vectors = layers(descriptor(e)[:, None] + code(chunks)).flatten(1)[:, : sum(counts)]
            made = [part.unflatten(1, s) * 0.1 for part, s in zip(vectors.split(counts, dim=1), shapes, strict=True)]
            totals, entropy = e.sum(dim=0), -(e * log_e).sum(dim=1).mean()
            loss = cross_entropy(one(made, images), labels)
            _descend(parameters, loss + 0.03 * totals.var(correction=0) / totals.mean() + 0.1 * entropy)
    return time.perf_counter() - begun


ROUNDS: Mapping[str, Callable[[], float]] = {
    "feddyn": feddyn, "fedala": fedala, "fedamp": fedamp, "fedfomo": fedfomo, "apple": apple, "feddistill": feddistill,
    "hyperfedzero": hyperfedzero,
}  # fmt: skip
"""The seconds of a round, for each method written here."""
