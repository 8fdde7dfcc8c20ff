"""FLamby's draws against PyTorch's loaders; its tables, with the real data, against published figures and its code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from florilegium.apps.engines.base import Means
from florilegium.clients.core.batch_orders import BatchOrder
from florilegium.partitions.sources import brca, heart
from florilegium.partitions.sources.source import DATA_VARIABLE
from florilegium.research.studies import flamby_draws as draws
from florilegium.research.studies.flamby import Draws, measure, published, table
from tests.support import CACHE

REAL = Path(os.environ.get(DATA_VARIABLE, "/nowhere"))
with_data = pytest.mark.skipif(
    not all((REAL / name).is_dir() for name in (heart.FOLDER, brca.FOLDER)), reason="no copy of the data"
)


def _loader(size: int, batch: int, workers: int = 0) -> DataLoader[Tensor]:
    return DataLoader(torch.arange(size), batch, shuffle=True, num_workers=workers)  # type: ignore[arg-type]


def _endless(loader: DataLoader[Tensor], first: Iterator[Tensor]) -> Iterator[Tensor]:
    yield from first
    while True:
        yield from loader


def _batches(order: BatchOrder, seed: int, client: int, size: int, batch: int) -> Iterator[list[int]]:
    for number in range(10**6):
        yield from map(Tensor.tolist, order(seed, str(client), size, number).split(batch))


class TestDraws:
    @pytest.mark.parametrize(
        ("order", "sizes", "batch"),
        [(draws.heart, draws.HEART, draws.HEART_BATCH), (draws.tcga, draws.TCGA, draws.TCGA_BATCH)],
    )
    def test_clients_that_share_a_stream(self, order: BatchOrder, sizes: tuple[int, ...], batch: int) -> None:
        """Loaders in one process, whose clients take 100 batches each in turn for three rounds, give the same rows."""
        with torch.random.fork_rng([]):
            loaders = [_loader(size, batch) for size in sizes]
            streams = [_endless(loader, iter(loader)) for loader in loaders]
            torch.manual_seed(43)
            ours = [_batches(order, 43, client, size, batch) for client, size in enumerate(sizes)]
            for _ in range(3):
                for theirs, own in zip(streams, ours, strict=True):
                    for _ in range(draws.UPDATES):
                        assert next(theirs).tolist() == next(own)

    def test_clients_that_take_turns(self) -> None:
        """FLamby's "cyclic": a client takes 100 batches in each round; all have a turn before one has another."""
        with torch.random.fork_rng([]):
            loaders = [_loader(size, draws.HEART_BATCH) for size in draws.HEART]
            streams = [_endless(loader, iter(loader)) for loader in loaders]
            torch.manual_seed(44)
            ours = [
                _batches(draws.heart_cyclic, 44, client, size, draws.HEART_BATCH)
                for client, size in enumerate(draws.HEART)
            ]
            order = np.random.default_rng(44)
            for client in [*order.permutation(4), *order.permutation(4)]:
                for _ in range(draws.UPDATES):
                    assert next(streams[client]).tolist() == next(ours[client])

    def test_clients_whose_loaders_have_workers(self) -> None:
        """Loaders with a worker process each, made after the model and before the stream is seeded again."""
        with torch.random.fork_rng([]):
            torch.manual_seed(43)
            nn.Linear(len(brca.FEATURES), 1)
            loaders = [_loader(size, draws.TCGA_BATCH, workers=1) for size in draws.TCGA]
            streams = [_endless(loader, iter(loader)) for loader in loaders]
            torch.manual_seed(43)
            for client, (theirs, size) in enumerate(zip(streams, draws.TCGA, strict=True)):
                own = _batches(draws.tcga_with_workers, 43, client, size, draws.TCGA_BATCH)
                for _ in range(draws.UPDATES):
                    assert next(theirs).tolist() == next(own)

    def test_a_client_that_trains_alone(self) -> None:
        with torch.random.fork_rng([]):
            loader = _loader(10, 4)
            torch.manual_seed(44)
            theirs = [rows.tolist() for _ in range(3) for rows in loader]
        own = _batches(draws.alone, 44, 0, 10, 4)
        assert theirs == [next(own) for _ in theirs]

    def test_initial_models(self) -> None:
        with torch.random.fork_rng([]):
            torch.manual_seed(45)
            layer = nn.Linear(13, 1)
        before = torch.get_rng_state()
        network = draws.seed_45((13,), 1)
        assert torch.equal(before, torch.get_rng_state())
        assert all(torch.equal(a, b) for a, b in zip(layer.parameters(), network.parameters(), strict=True))

    def test_other_names_and_sizes_are_refused(self) -> None:
        with pytest.raises(AttributeError, match="seed_x"):
            draws.seed_x  # noqa: B018
        with pytest.raises(ValueError, match="client 1 has 7 training examples, FLamby's has 172"):
            draws.heart(42, "1", 7, 0)


def _measured(
    tmp_path: Path, base: str, variants: list[str], seeds: list[int], kind: Draws = "flamby"
) -> dict[str, np.ndarray]:
    """Return the figures (seeds, test sets) of a recipe's table of some variants and seeds."""
    recipe = tmp_path / "own.toml"
    recipe.write_text(f'extends = "{base}"\n[sweeps.table]\nvariants = {variants}\nseeds = {seeds}\n')
    folders = {"runs-dir": str(tmp_path / "runs"), "cache-dir": str(CACHE), "data-dir": str(REAL)}
    _, _, found = measure(str(recipe), folders, Means("process", 1, fork=True), draws=kind)
    return found


@with_data
@pytest.mark.long
class TestTables:
    def test_heart_disease_is_the_published_one(self, tmp_path: Path) -> None:
        """Every mean and deviation of three methods over the five seeds, as printed."""
        found = _measured(tmp_path, "flamby-heart", ["fedavg", "scaffold", "pooled"], [42, 43, 44, 45, 46])
        shown = table("fed-heart", ["pooled", *heart.HOSPITALS], found)
        assert len(shown.rows) == 3
        for name, *cells in shown.rows:
            for cell, theirs in zip(cells, published("fed-heart").rows[name], strict=True):
                assert theirs is not None
                assert cell.partition(" (")[0] == theirs.text

    def test_breast_cancer_is_that_of_flambys_code(self, tmp_path: Path) -> None:
        """C-indices of FLamby's code of 2024, seed 42, on all patients and by region."""
        found = _measured(tmp_path, "flamby-tcga", ["fedavg", "fedprox", "fedadam", "fedyogi", "scaffold"], [42])
        adam = [0.8366, 0.8799, 0.6364, 0.8889, 0.5833, 0.8723, 1.0]
        theirs = {
            "FedAvg": [0.7282, 0.6089, 0.8636, 0.7593, 0.4375, 0.9787, 0.6667],
            "FedProx": [0.7238, 0.6034, 0.8636, 0.7778, 0.4167, 0.9787, 0.6667],
            "FedAdam": adam,
            "FedYogi": adam,
            "SCAFFOLD": [0.6982, 0.5754, 0.7727, 0.6852, 0.5625, 0.9149, 0.6667],
        }
        assert found.keys() == theirs.keys()
        for name, values in theirs.items():
            np.testing.assert_allclose(found[name][0], values, atol=1e-4)

    def test_breast_cancer_pooled_is_the_published_one(self, tmp_path: Path) -> None:
        found = _measured(tmp_path, "flamby-tcga", ["fedavg", "pooled"], [42, 43, 44, 45, 46])
        shown = table("fed-tcga-brca", ["pooled", *brca.REGIONS], found).rows[-1]
        assert [cell.partition(" (")[0] for cell in shown[1:]] == [
            theirs.text for theirs in published("fed-tcga-brca").rows["Pooled training"] if theirs
        ]

    def test_cyclic_is_the_first_client_alone_in_its_turns(self, tmp_path: Path) -> None:
        """Published means; by its code the first region has no turn with seed 42: its model is then untrained."""
        seeds = [42, 43, 44, 45, 46]
        hospitals = _measured(tmp_path, "flamby-heart", ["fedavg", "cyclic"], seeds)["Cyclic"]
        regions = _measured(tmp_path, "flamby-tcga", ["fedavg", "cyclic"], seeds, "workers")["Cyclic"]
        for found, dataset, near in ((hospitals, "fed-heart", 0.0006), (regions, "fed-tcga-brca", 0.006)):
            theirs = [float(one.value) for one in published(dataset).rows["Cyclic"][:-1] if one]
            np.testing.assert_allclose(found.mean(axis=0), theirs, atol=near)
