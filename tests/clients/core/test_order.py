"""Key ``batch-order``: batches that go on across rounds, in the suite's order or one of your own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from florilegium.clients.core.order import Order, drawn
from florilegium.clients.core.training import in_batches
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.common.settings import Value
from florilegium.models.networks import build
from florilegium.models.parameters import get_arrays
from florilegium.partitions.clientdata import Examples
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.runs import Runs
from tests.support import make_client, perform

KEYS: dict[str, Value] = {
    "num-clients": 5, "samples-per-client": 11, "rounds": 4, "local-steps": 3, "batch-size": 4, "participation": 0.6,
    "evaluate-every": 2, "model": "linear",
}  # fmt: skip


def backwards(seed: int, client: str, examples: int, number: int) -> Tensor:
    """Return the last example first; every other pass the other way round."""
    return torch.arange(examples).flip(0) if number % 2 == 0 else torch.arange(examples)


def wrong(seed: int, client: str, examples: int, number: int) -> Tensor:
    """Return no permutation."""
    return torch.zeros(examples, dtype=torch.int64)


def _rounds(tmp_path: Path, rounds: int, **keys: Value) -> list[list[list[int]]]:
    """Return the batches of each round of a client with 7 examples, in batches of 3."""
    examples = Examples(torch.randn(7, 1, 8, 8), torch.randint(10, (7,)))
    found, network = [], build("linear", (1, 8, 8), 10, 1)
    start = get_arrays(network)
    for number in range(1, rounds + 1):
        client = make_client(examples, network, folder=tmp_path, **{"batch-size": 3, **keys})
        seen: list[list[int]] = []
        client.gradient_hook = lambda seen=seen: lambda model, rows: seen.append(rows.tolist())
        perform(client, "train", start, round=number)
        client.state.commit()
        found.append(seen)
    return found


class TestOrder:
    def test_passes_end_where_they_must(self) -> None:
        """Two steps a round, three batches a pass: the batches of passes 0, 1, … in order, whatever the rounds are."""
        order, batches = Order(lambda number: torch.arange(7) + 10 * number), []
        for _ in range(4):
            rest = order.rest(lambda rows: in_batches(rows, 3))
            batches += [rows.tolist() for _, rows in zip(range(2), rest, strict=False)]
        assert batches == [[0, 1, 2], [3, 4, 5], [6], [10, 11, 12], [13, 14, 15], [16]]

    def test_a_client_that_has_lost_examples_begins_a_new_pass(self) -> None:
        order = Order(lambda number: torch.arange(2) + 10 * number, number=3, used=2)
        assert [rows.tolist() for rows in order.rest(lambda rows: in_batches(rows, 3))] == [[40, 41]]
        assert (order.number, order.used) == (5, 0)

    def test_orders_are_of_the_client_and_the_pass(self) -> None:
        orders = [drawn(1, "0", 50, 0), drawn(1, "0", 50, 1), drawn(1, "1", 50, 0), drawn(2, "0", 50, 0)]
        assert len({tuple(order.tolist()) for order in orders}) == 4
        assert all(sorted(order.tolist()) == list(range(50)) for order in orders)
        assert torch.equal(orders[0], drawn(1, "0", 50, 0))


class TestRounds:
    def test_a_round_goes_on_where_the_last_one_stopped(self, tmp_path: Path) -> None:
        """Batches of rounds of four steps, one after the other, are those of whole passes in the drawn order."""
        rounds = _rounds(tmp_path, 3, **{"batch-order": "continue", "local-steps": 4})
        passes = [rows.tolist() for number in range(4) for rows in drawn(1, "0", 7, number).split(3)]
        assert [batch for batches in rounds for batch in batches] == passes

    def test_epochs_are_whole_passes(self, tmp_path: Path) -> None:
        rounds = _rounds(tmp_path, 2, **{"batch-order": "continue", "local-epochs": 2})
        assert [[row for rows in batches[:3] for row in rows] for batches in rounds] == [
            drawn(1, "0", 7, n).tolist() for n in (0, 2)
        ]

    def test_an_order_of_your_own(self, tmp_path: Path) -> None:
        rounds = _rounds(tmp_path, 2, **{"batch-order": f"{__name__}:backwards", "local-steps": 2})
        assert rounds == [[[6, 5, 4], [3, 2, 1]], [[0], [0, 1, 2]]]

    def test_no_permutation_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(RunError, match=r"wrong' must return a permutation of 0..6, .* pass 0 of client '0'"):
            _rounds(tmp_path, 1, **{"batch-order": f"{__name__}:wrong"})


class TestRuns:
    @pytest.mark.parametrize("method", ["fedavg", "ditto"])
    def test_resume_and_packing(self, method: str, tmp_path: Path) -> None:
        Runs(tmp_path, KEYS).check_resume_and_packing(**{"batch-order": "continue", "method": method})

    def test_together_as_alone(self, tmp_path: Path) -> None:
        """Clients of 11 and fewer examples, some in the middle of a pass, train together on the same batches."""
        run = Runs(tmp_path, {**KEYS, "batch-order": "continue", "partitioner": "dirichlet", "participation": 1.0})
        alone, together = (read_checkpoint(run(f"run{n}", nodes=1, vectorise=n)).arrays for n in (1, 5))
        for name, array in alone.items():
            np.testing.assert_allclose(array, together[name], rtol=1e-5, atol=1e-6)
        places = [
            {path.name.rpartition("-")[0]: path.parent.name for path in (run.folder / f"run{n}").rglob("order*")}
            for n in (1, 5)
        ]
        assert places[0] == places[1] != {}

    def test_methods_that_draw_batches_themselves_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="batch-order: 'continue' is for methods whose clients"):
            Runs(tmp_path, KEYS)("run", **{"method": "per-fedavg", "batch-order": "continue"})

    def test_private_examples_are_refused(self, tmp_path: Path) -> None:
        private = {"privacy.unit": "example", "privacy.clip-norm": 1.0, "privacy.noise-multiplier": 1.0}
        with pytest.raises(ConfigurationError, match="batch-order: private batches are sampled anew"):
            Runs(tmp_path, KEYS)("run", **private, **{"batch-order": "continue"})

    def test_an_unknown_order_is_refused_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigurationError, match="'kontinue' is not an order of batches"):
            Runs(tmp_path, KEYS)("run", **{"batch-order": "kontinue"})
