"""Rounds of methods that compute much outside of modules, as one would write them in plain PyTorch.

Five clients train for an epoch, one after the other; FedAMP's server mixes their models before. There are no averages,
messages, files, checks or metrics. Networks, memory layout and the hyper-parameters' values are the suite's.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import cross_entropy, normalize, one_hot, softplus

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
    begun = time.process_time()
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
    return time.process_time() - begun


def feddyn() -> float:
    """FedDyn: clients train under a pull towards the received model and along their memory of gradients."""
    model, (x, y) = _network(), _data()
    received = _flat(model)
    memories = [[0.01 * torch.randn_like(p) for p in _parameters(model)] for _ in range(CLIENTS)]
    begun = time.process_time()
    for memory in memories:
        _fill(model, received)
        _train_corrected(model, x, y, 0.01, memory)
    return time.process_time() - begun


def scaffold() -> float:
    """SCAFFOLD, option II: gradients are corrected by control variates, and the client's own is renewed afterwards."""
    model, (x, y) = _network(), _data()
    parameters, received = _parameters(model), _flat(model)
    common, own = ([0.01 * torch.randn_like(p) for p in parameters] for _ in range(2))
    begun = time.process_time()
    for _ in range(CLIENTS):
        _fill(model, received)
        start = [p.detach().clone() for p in parameters]
        shifts = torch._foreach_sub(common, own)
        for images, labels in _batches(x, y):
            slopes = [*torch.autograd.grad(cross_entropy(model(images), labels), parameters)]
            with torch.no_grad():
                torch._foreach_add_(slopes, shifts)
                torch._foreach_add_(parameters, slopes, alpha=-RATE)
        with torch.no_grad():
            own = [*torch._foreach_div(torch._foreach_sub(start, parameters), RATE * IMAGES / BATCH)]
            torch._foreach_sub_(own, shifts)
    return time.process_time() - begun


def fedamp() -> float:
    """FedAMP: the server mixes the models by their distances; clients train under a pull towards the mixture."""
    model, (x, y) = _network(), _data()
    begun = time.process_time()
    models = torch.stack([_flat(model) for _ in range(CLIENTS)]).double()
    ξ = torch.exp(-(torch.cdist(models, models) ** 2) / 10).fill_diagonal_(0)
    ξ /= ξ.sum(dim=1, keepdim=True).clamp(min=1)
    for mixture in ((ξ + torch.diag(1 - ξ.sum(dim=1))) @ models).float():
        _fill(model, mixture)
        _train_corrected(model, x, y, 0.1)
    return time.process_time() - begun


def fedfomo() -> float:
    """FedFomo: the client compares four received models and its own on 20 % of its images, and trains on the others."""
    model, (x, y) = _network(), _data()
    share = IMAGES // 5
    bank = [_flat(model) * (1 + 0.01 * client) for client in range(CLIENTS)]
    begun = time.process_time()
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
    return time.process_time() - begun


def apple() -> float:
    """APPLE: in each step the client combines five models, and learns its own and the weights of the combination."""
    model, (x, y) = _network(), _data()
    parameters = _parameters(model)
    received = torch.stack([_flat(model) for _ in range(CLIENTS)])
    begun = time.process_time()
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
    return time.process_time() - begun


def feddistill() -> float:
    """FedDistill: logits are drawn towards the others' mean logits of the class, and summed by class."""
    model, (x, y) = _network(), _data()
    parameters = _parameters(model)
    probabilities, known = torch.randn(CLASSES, CLASSES).softmax(dim=1), torch.ones(CLASSES)
    begun = time.process_time()
    for _ in range(CLIENTS):
        sums, counts = torch.zeros(CLASSES, CLASSES), torch.zeros(CLASSES, dtype=torch.int64)
        for images, labels in _batches(x, y):
            logits = model(images)
            sums.index_add_(0, labels, logits.detach())
            counts += labels.bincount(minlength=CLASSES)
            distances = cross_entropy(logits, probabilities[labels], reduction="none")
            _descend(parameters, cross_entropy(logits, labels) + (known[labels] * distances).mean())
        sums /= counts.clamp(min=1)[:, None]
    return time.process_time() - begun


def fedcp() -> float:
    """FedCP: a policy separates features for a personal and a frozen head; features stay near the received body's."""
    model, (x, y) = _network(), _data()
    body, head = nn.Sequential(*model[:-1], nn.Flatten()), model[-1]
    weight = next(p for p in head.parameters() if p.dim() == 2)
    d = weight.shape[1]
    policy = nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d), nn.ReLU())
    parameters = _parameters(model, policy)
    begun = time.process_time()
    for _ in range(CLIENTS):
        shared = copy.deepcopy(head).requires_grad_(False)
        with torch.no_grad():
            condition = normalize(weight.sum(dim=0), dim=0)
            received = torch.cat([body(part) for part in x.split(256)])
        for rows in torch.randperm(IMAGES).split(BATCH):
            h, kept = body(x[rows]), received[rows]
            personal, other = policy(condition * h).chunk(2, dim=1)
            r = torch.sigmoid(personal - other)
            joint = torch.cat([h, kept])
            distances = torch.cdist(joint, joint).square()
            kernel = sum(((distances / (-2 * b)).exp() for b in (10.0, 15.0, 20.0, 50.0)), torch.zeros(()))
            n = len(rows)
            apart = kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()
            _descend(parameters, cross_entropy(head(r * h) + shared((1 - r) * h), y[rows]) + 5 * apart)
    return time.process_time() - begun


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
    begun = time.process_time()
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
    return time.process_time() - begun


def fedgtst() -> float:
    """FedGTST: a penalty on the gradient's norm in each step; one client also trains without; norms on all images."""
    model, (x, y) = _network(), _data()
    parameters = _parameters(model)
    received = copy.deepcopy(model.state_dict())

    def norm_of(slopes: Sequence[Tensor]) -> Tensor:
        return torch.stack([slope.square().sum() for slope in slopes]).sum().add(1e-12).sqrt()

    begun = time.process_time()
    for client in range(CLIENTS):
        if client == 0:
            _train(model, x, y)
            norm_of(torch.autograd.grad(cross_entropy(model(x), y), parameters))
        model.load_state_dict(received)
        for images, labels in _batches(x, y):
            loss = cross_entropy(model(images), labels)
            slopes = torch.autograd.grad(loss, parameters, create_graph=True)
            _descend(parameters, loss + 0.0005 * (norm_of(slopes) - 1).square())
        norm_of(torch.autograd.grad(cross_entropy(model(x), y), parameters))
    return time.process_time() - begun


def fedtta() -> float:
    """FedTTA: in each step the network adapts by a step along a learned loss, through which both are trained."""
    model, (x, y) = _network(), _data()
    φ = nn.Sequential(nn.Linear(CLASSES, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    θ = dict(model.named_parameters())
    parameters = _parameters(model, φ)
    begun = time.process_time()
    for _ in range(CLIENTS):
        for images, labels in _batches(x, y):
            own = φ(model(images)).square().mean().add(1e-12).sqrt()
            slopes = torch.autograd.grad(own, list(θ.values()), create_graph=True)
            adapted = {name: p - 0.1 * slope for (name, p), slope in zip(θ.items(), slopes, strict=True)}
            _descend(parameters, cross_entropy(functional_call(model, adapted, (images,)), labels))
    return time.process_time() - begun


def _projection(model: nn.Module) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return the map from a point v (10,000,) of a subspace to the network's parameters, θ₀ + AVBᵀ."""
    origin, shapes = _flat(model), {name: p.shape for name, p in model.named_parameters()}
    side = math.isqrt(len(origin)) + 1
    a, b = (torch.linalg.qr(torch.randn(side, 100))[0] for _ in range(2))

    def project(v: Tensor) -> dict[str, Tensor]:
        θ = origin + (a @ v.view(100, 100) @ b.T).flatten()[: len(origin)]
        parts = θ.split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    return project


def ld_fedavg() -> float:
    """LD-FedAvg: clients train a point of a subspace of 10,000 dimensions."""
    model, (x, y) = _network(), _data()
    project = _projection(model)
    begun = time.process_time()
    for _ in range(CLIENTS):
        v = torch.zeros(10_000, requires_grad=True)
        for images, labels in _batches(x, y):
            _descend([v], cross_entropy(functional_call(model, project(v), (images,)), labels))
    return time.process_time() - begun


def flowdup() -> float:
    """FLowDUP: a network makes a model in a subspace from half of a batch, which is judged on the other half."""
    model, inner, (x, y) = _network(), _network(256), _data()
    outer, center = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10_000)), torch.zeros(10_000)
    project = _projection(model)
    parameters = [*_parameters(inner, outer), center.requires_grad_()]
    begun = time.process_time()
    for _ in range(CLIENTS):
        for images, labels in _batches(x, y):
            half = len(images) // 2
            v = outer(inner(images[:half]).mean(dim=0))
            logits = functional_call(model, project(v), (images[half:],))
            _descend(parameters, cross_entropy(logits, labels[half:]) + 0.001 * (v - center).square().sum())
    return time.process_time() - begun


def ppfe() -> float:
    """PPFE, the round of its second stage: clients train on weighted images; the ensemble's errors weigh them anew."""
    model, earlier, (x, y) = _network(), _network(), _data()
    parameters, before = _parameters(model), earlier(x).detach()
    begun = time.process_time()
    for _ in range(CLIENTS):
        ω = torch.ones(IMAGES)
        for rows in torch.randperm(IMAGES).split(BATCH):
            _descend(parameters, (ω[rows] * cross_entropy(model(x[rows]), y[rows], reduction="none")).mean())
        with torch.no_grad():
            own = model(x)
            ε = float((ω * (own.argmax(dim=1) != y)).sum() / ω.sum())
            β = 0.5 * math.log((1 - ε) / max(ε, 0.01))
            both = torch.logsumexp(torch.stack([before, own]).log_softmax(dim=2), dim=0)
            ω = ω * torch.exp(β * (both.argmax(dim=1) != y).float())
            ω *= IMAGES / ω.sum()
    return time.process_time() - begun


def pefll() -> float:
    """PeFLL: a network makes each client's model from the mean of an embedding, and learns from the model's change."""
    model, embedding, size, (x, y) = _network(), nn.Linear(CLASSES, 1), 1, _data()
    count, described = sum(p.numel() for p in model.parameters()), one_hot(y[:32], CLASSES).float()
    hidden = [layer for _ in range(3) for layer in (nn.Linear(100, 100), nn.ReLU())]
    h = nn.Sequential(nn.Linear(size, 100), nn.ReLU(), *hidden, nn.Linear(100, count))
    learned = _parameters(h, embedding)
    begun = time.process_time()
    v = torch.stack([embedding(described).mean(dim=0).detach() for _ in range(CLIENTS)]).requires_grad_()
    θ, changes = h(v), []
    for own in θ.detach():
        _fill(model, own)
        _train(model, x, y)
        changes.append(_flat(model) - own)
    *slopes, Δv = torch.autograd.grad(θ, [*h.parameters(), v], torch.stack(changes) / CLIENTS)
    for each in Δv:
        slopes += torch.autograd.grad(embedding(described).mean(dim=0), list(embedding.parameters()), each)
    with torch.no_grad():
        torch._foreach_add_(learned, slopes[: len(learned)], alpha=RATE)
    return time.process_time() - begun


_WRITTEN = (
    feddyn, scaffold, fedala, fedamp, fedfomo, apple, feddistill, fedcp, hyperfedzero, fedgtst, fedtta, ld_fedavg,
    flowdup, ppfe, pefll,
)  # fmt: skip
ROUNDS: Mapping[str, Callable[[], float]] = {one.__name__.replace("_", "-"): one for one in _WRITTEN}
"""The seconds of a round, for each method written here."""
