"""A client's examples as tensors, on a real device or in a simulated federation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from florilegium.partitions.scaling import Scaling
from florilegium.partitions.shares import Federation, client_rows
from florilegium.partitions.sources.words import Vocabulary
from florilegium.partitions.spec import Dataset, DatasetSpec
from florilegium.partitions.terms import ALL, Terms
from florilegium.tasks.task import Task

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Examples:
    """Inputs and their labels.

    Attributes:
        x: inputs (n, *shape): normalised float32 images in channels-last layout, float32 features, int64 character
            codes, or float32 word vectors.
        y: targets (n, *shape) of the task: int64 classes (n,), or float32 numbers (n, k).
        redraw: for inputs that change at random from epoch to epoch of a training: returns those of an epoch, given
            the training's seed and the epoch's number; ``x`` are the unchanged ones.
        weights: a weight ≥ 0 of each example in the training loss, (n,); None: 1 each.
    """

    x: Tensor
    y: Tensor
    redraw: Callable[[int, int], Tensor] | None = None
    weights: Tensor | None = None

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, chosen: Tensor | slice) -> Examples:
        """Return the chosen examples."""
        redraw, weights = self.redraw, None if self.weights is None else self.weights[chosen]
        again = redraw and (lambda seed, epoch: redraw(seed, epoch)[chosen])
        return Examples(self.x[chosen], self.y[chosen], again, weights)

    def redrawn(self, change: Callable[[Tensor, int, int], Tensor]) -> Examples:
        """Return the same examples, whose inputs training changes from epoch to epoch (:attr:`redraw`).

        Args:
            change: returns changed inputs, given the inputs, a seed and an epoch.
        """
        return Examples(self.x.clone(), self.y, lambda seed, epoch: change(self.x, seed, epoch), self.weights)


def joined(parts: Sequence[Examples]) -> Examples:
    """Return the examples of several parts, which do not change from epoch to epoch, in one."""
    if len(parts) == 1:
        return parts[0]
    weights = [part.weights for part in parts if part.weights is not None]
    x, y = (torch.cat([getattr(part, name) for part in parts]) for name in ("x", "y"))
    return Examples(x, y, weights=torch.cat(weights) if weights else None)


def validating(count: int, fraction: float) -> int:
    """Return how many of ``count`` training examples :meth:`ClientData.hold_back` holds out for validation."""
    return int(fraction * count)


class ClientData:
    """The training and test examples of one client, each loaded when it is first used.

    Args:
        train, test: functions that load the training and test examples.
        labeled: whether training may use the classes of the training examples.
        simulated: whether the client is simulated, so that anyone who knows the seed may repeat its random draws.
        device: device of the tensors.
        validation: function that loads the validation examples held out from training, if any.
        labels: function that loads the labels of the training examples alone, if that is faster.
        notes: what is to be said of files that are no examples, a line each.
        scaling: function that returns the scaling that the client's inputs have behind that of the dataset, if any.
        part: function that loads validation examples of the client's own, to be used in place of training examples.
        terms: what of the data a run may use.
    """

    def __init__(
        self,
        train: Callable[[], Examples],
        test: Callable[[], Examples],
        *,
        labeled: bool,
        simulated: bool,
        device: torch.device,
        validation: Callable[[], Examples] | None = None,
        labels: Callable[[], Tensor] | None = None,
        notes: Sequence[str] = (),
        scaling: Callable[[], Scaling] | None = None,
        part: Callable[[], Examples] | None = None,
        terms: Terms = ALL,
    ) -> None:
        self._train, self._test, self._validation, self.device = train, test, validation, device
        self._scaling, self._part = scaling, part
        self.unscaled: tuple[ClientData, DatasetSpec] | None = None
        self._labels = labels
        self.labeled = labeled
        self.simulated = simulated
        self.notes = notes
        self.terms = terms

    @property
    def own_validation(self) -> int:
        """The number of validation examples that are not held out from training; 0: there are none."""
        data = self if self.unscaled is None else self.unscaled[0]
        return 0 if data._part is None else len(data._part())

    @property
    def scaling(self) -> Scaling | None:
        """The client's own scaling of its inputs (key ``standardise``); None: it has none."""
        return self._scaling() if self._scaling else None

    @cached_property
    def train(self) -> Examples:
        """The training examples."""
        return self._move(self._train())

    @cached_property
    def labels(self) -> Tensor:
        """The labels of the training examples, as ``train.y``, (n,); where possible, their inputs are not loaded."""
        return self._labels().to(self.device) if self._labels else self.train.y

    @cached_property
    def test(self) -> Examples:
        """The test examples; empty if the client has too few examples to hold any out."""
        return self._move(self._test())

    @cached_property
    def validation(self) -> Examples:
        """The validation examples, held out from training; empty unless :meth:`hold_back` chose some."""
        return self._move(self._validation()) if self._validation else self.test.rows(slice(0))

    def hold_back(self, fraction: float, generator: torch.Generator, task: Task) -> ClientData:
        """Return the same data with a ``fraction`` (0..1) of the training examples, rounded down, held out to validate.

        Every example is equally likely to be chosen, and every class, or stratum of the task, gives the same share of
        its examples, to within one. If classes were ignored, validation would have most examples of the classes that
        happen to be rarest in the remaining training examples, and would penalise learning. A client without labels
        keeps all its training examples, since it could not evaluate anything. So does one that has validation examples
        of its own, which are then used.
        """
        if not self.labeled:
            return self
        if self.unscaled is not None:  # what is held out must not be in the client's own scales
            data, spec = self.unscaled
            return standardised(data.hold_back(fraction, generator, task), spec)
        if self._part is not None:
            return self._with(lambda: self.train, validation=self._part)

        @cache
        def held() -> Tensor:
            """Choose by systematic sampling: sort by class, then take examples at equal steps from a random start."""
            classes = torch.from_numpy(task.strata(self.train.y.cpu().numpy()))
            count = validating(len(self.train), fraction)
            order = torch.randperm(len(classes), generator=generator)
            order = order[classes[order].argsort(stable=True)]
            start = torch.rand((), generator=generator, dtype=torch.float64)
            chosen = torch.zeros(len(classes), dtype=torch.bool)
            chosen[order[((torch.arange(count) + start) * len(classes) / max(1, count)).long()]] = True
            return chosen

        return self._with(lambda: self.train.rows(~held()), validation=lambda: self.train.rows(held()))

    def _with(
        self,
        train: Callable[[], Examples],
        test: Callable[[], Examples] | None = None,
        validation: Callable[[], Examples] | None = None,
    ) -> ClientData:
        """Return the same client with other examples; None: its own."""
        return ClientData(
            train, test or (lambda: self.test), labeled=self.labeled, simulated=self.simulated, device=self.device,
            validation=validation or (lambda: self.validation), notes=self.notes, scaling=self._scaling,
            part=self._part, terms=self.terms,
        )  # fmt: skip

    def redrawn(self, change: Callable[[Tensor, int, int], Tensor]) -> ClientData:
        """Return the same data, with training examples that training changes (:meth:`Examples.redrawn`)."""
        return self._with(lambda: self.train.redrawn(change))

    def changed(self, change: Callable[[Examples], Examples]) -> ClientData:
        """Return the same data with other training examples, which ``change`` returns."""
        return self._with(lambda: change(self.train))

    def weighted(self, weigh: Callable[[NDArray[Any]], NDArray[np.float32]]) -> ClientData:
        """Return the same data, with weights of training examples: ``weigh`` returns them, (n,), given the targets."""

        def train() -> Examples:
            own = torch.from_numpy(weigh(self.train.y.cpu().numpy())).to(self.train.y.device)
            return replace(self.train, weights=own if self.train.weights is None else own * self.train.weights)

        return self._with(train)

    def without_test(self) -> ClientData:
        """Return the same data with the validation examples as test examples; the real ones cannot be read any more."""

        def held() -> Examples:
            return self.validation if self._validation else self.train.rows(slice(0))

        return self._with(lambda: self.train, held, held)

    def _move(self, examples: Examples) -> Examples:
        weights = None if examples.weights is None else examples.weights.to(self.device)
        return replace(examples, x=examples.x.to(self.device), y=examples.y.to(self.device), weights=weights)


def standardised(data: ClientData, spec: DatasetSpec) -> ClientData:
    """Return data whose numbers the client standardises itself, if its table is to (``TableSchema.own``)."""
    table = spec.table
    if table is None or not table.own:
        return data

    @cache
    def scaling() -> Scaling:
        return Scaling.of(data.train.x.cpu(), table.scaled)

    def scaled(examples: Examples) -> Examples:
        return replace(examples, x=scaling().apply(examples.x))

    found = ClientData(
        lambda: scaled(data.train), lambda: scaled(data.test), labeled=data.labeled, simulated=data.simulated,
        device=data.device, labels=lambda: data.labels, notes=data.notes, scaling=scaling,
        validation=lambda: scaled(data.validation), terms=data.terms,
    )  # fmt: skip
    found.unscaled = data, spec
    return found


def to_inputs(
    spec: DatasetSpec, x: NDArray[np.generic], words: Vocabulary | None = None, device: torch.device = CPU
) -> Tensor:
    """Convert decoded rows to network inputs.

    Images are normalised per channel, character codes converted to int64, and word indices replaced by word vectors.

    Args:
        spec: the dataset.
        x: the decoded rows.
        words: the vocabulary of word indices.
        device: where to convert: a GPU receives an image's bytes, a quarter of its numbers, and the CPU is spared.
    """
    tensor = torch.from_numpy(np.require(x, requirements=["C", "W"])).to(device)
    match spec.kind:
        case "image":
            width, channels = tensor.shape[2:]
            scale, shift = _scaling(tuple(spec.mean), tuple(spec.std), width if channels > 1 else 1, device)
            pixels = (
                tensor.flatten(2).to(torch.float32, copy=True).mul_(scale).sub_(shift).unflatten(2, (width, channels))
            )
            # Rows are stored as (n, height, width, channels), so permuting gives the channels-last layout.
            return pixels.permute(0, 3, 1, 2)
        case "characters" | "tokens" | "pieces":
            return tensor.long()
        case "words":
            assert words is not None, "word numbers become vectors with their vocabulary"
            return torch.from_numpy(words.vectors[x])
        case "table" | "numbers":
            return tensor.float()


@lru_cache(maxsize=8)
def _scaling(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return scale and shift of ``width`` pixels beside each other, 0 to 255, per channel.

    To multiply whole rows by them is many times faster than to multiply three channels at a time.
    """
    scale, shift = 1 / (255 * torch.tensor(std)), torch.tensor(mean) / torch.tensor(std)
    return scale.repeat(width).to(device), shift.repeat(width).to(device)


def resize(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Resize images (n, channels, height, width) to the height and width of ``shape``; leave other inputs unchanged."""
    if x.dim() != 4 or x.shape[2:] == tuple(shape[1:]):
        return x
    return interpolate(x, size=tuple(shape[1:]), mode="bilinear", align_corners=False)


def as_seen(
    federation: Federation,
    spec: DatasetSpec,
    client: int,
    x: NDArray[np.generic],
    rows: NDArray[np.int64],
    test_split: bool,
) -> NDArray[np.generic]:
    """Return decoded rows of a client, with its rotation and its noise, if its partitioner gives it any.

    Args:
        federation: the federation.
        spec: the dataset of the rows.
        client: the client, 0..n-1.
        x: the decoded rows, (m, …).
        rows: their numbers in their split, (m,).
        test_split: whether this is the test split.
    """
    if federation.angles[client]:
        from florilegium.partitions.partitioners.rotation import rotate_images

        x = rotate_images(x, float(federation.angles[client]))
    if federation.noise is not None:
        from florilegium.partitions.partitioners.noise import add_noise

        level = spec.brightest * float(federation.noise.levels[client])
        x = add_noise(x, level, federation.noise.seed, rows, int(test_split))
    return x


def decoded(
    federation: Federation, dataset: Dataset, client: int, part: str
) -> tuple[NDArray[np.generic], NDArray[Any]]:
    """Return inputs and labels of a client's ``part`` ("train" or "test"), with rotation, noise and canaries applied.

    The inputs are decoded rows, not network inputs yet. With noise, pixels are not whole numbers and may lie outside
    0..255.
    """
    split, rows = client_rows(federation, dataset, client, part)
    x = as_seen(federation, dataset.spec, client, np.asarray(split.x)[rows], rows, split is not dataset.train)
    return x, labels(federation, dataset, client, part)


def labels(federation: Federation, dataset: Dataset, client: int, part: str) -> NDArray[Any]:
    """Return the labels (n,) of a client's ``part`` ("train" or "test"), with canaries applied."""
    split, rows = client_rows(federation, dataset, client, part)
    y, canaries = split.y[rows], federation.canaries
    if part == "train" and len(canaries.clients) and len(own := np.flatnonzero(canaries.clients == client)):
        wrong = dict(zip(canaries.rows[own], canaries.classes[own], strict=True))
        y = np.array([wrong.get(row, true) for row, true in zip(rows, y, strict=True)], dtype=y.dtype)
    return y


def constant(federation: Federation, dataset: Dataset, clients: Iterable[int], part: str) -> float:
    """Return the main figure of the best constant prediction for some clients' ``part`` ("train" or "test").

    NaN without examples, or if the task does not know it.
    """
    found = [client_rows(federation, dataset, client, part) for client in clients]
    targets = [split.y[rows] for split, rows in found]
    return dataset.spec.learned.constant(np.concatenate(targets)) if targets else float("nan")


Part = tuple[NDArray[np.generic], NDArray[Any], NDArray[np.float32] | None]
"""Decoded inputs (n, …), targets (n, …), and weights of rows (n,); None: 1 each."""


@dataclass(frozen=True)
class ClientRows:
    """The decoded rows of one client of a simulated federation, for a process that has none of the others'.

    Attributes:
        parts: the rows of "train" and "test", and of "validation" if the client has such rows of its own, as
            :func:`decoded` returns them.
        labeled: whether training may use the targets.
    """

    parts: Mapping[str, Part]
    labeled: bool

    @staticmethod
    def of(federation: Federation, dataset: Dataset, client: int) -> ClientRows:
        """Return the rows of ``client``, 0..n-1."""
        names = ("train", "test", *(["validation"] if _validated(federation, client) else []))
        parts = {name: _part(federation, dataset, client, name) for name in names}
        return ClientRows(parts, bool(federation.labeled[client]))

    def __len__(self) -> int:
        return sum(len(y) for _, y, _ in self.parts.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for part in self.parts.values() for array in part if array is not None)


def simulated(federation: Federation, dataset: Dataset, client: int, device: torch.device = CPU) -> ClientData:
    """Return the data of ``client`` (0..n-1) in a simulated federation."""
    return _loaded(
        dataset.spec, dataset.vocabulary, lambda name: _part(federation, dataset, client, name),
        lambda: labels(federation, dataset, client, "train"), device,
        labeled=bool(federation.labeled[client]), validated=_validated(federation, client),
    )  # fmt: skip


def supplied(
    spec: DatasetSpec, vocabulary: Vocabulary | None, rows: ClientRows, device: torch.device = CPU
) -> ClientData:
    """Return the data of a simulated client as :func:`simulated`, from its rows alone.

    Args:
        spec, vocabulary: those of the dataset.
        rows: the client's rows; they may be read-only.
        device: device of the tensors.
    """
    return _loaded(
        spec, vocabulary, rows.parts.__getitem__, lambda: rows.parts["train"][1], device,
        labeled=rows.labeled, validated="validation" in rows.parts,
    )  # fmt: skip


def _validated(federation: Federation, client: int) -> bool:
    return federation.validation is not None and len(federation.validation[client]) > 0


def _part(federation: Federation, dataset: Dataset, client: int, name: str) -> Part:
    x, y = decoded(federation, dataset, client, name)
    split, rows = client_rows(federation, dataset, client, name)
    return x, y, None if split.weights is None else split.weights[rows]


def _loaded(
    spec: DatasetSpec,
    vocabulary: Vocabulary | None,
    load: Callable[[str], Part],
    targets: Callable[[], NDArray[Any]],
    device: torch.device,
    *,
    labeled: bool,
    validated: bool,
) -> ClientData:
    """Return the data of a simulated client whose decoded rows ``load`` returns, and ``targets`` those to train on."""

    def examples(name: str) -> Examples:
        x, y, weights = load(name)
        inputs = to_inputs(spec, x, vocabulary, device)
        return Examples(inputs, _tensor(y), weights=None if weights is None else _tensor(weights))

    data = ClientData(
        lambda: examples("train"),
        lambda: examples("test"),
        labeled=labeled,
        simulated=True,
        device=device,
        labels=lambda: _tensor(targets()),
        part=(lambda: examples("validation")) if validated else None,
    )
    return standardised(data, spec)


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.require(array, requirements="W"))
