"""PPFE: its limits (FedAvg, FedPer), boosting by hand, what clients keep, resume, bad input."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from safetensors.numpy import load_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from florilegium.apps.runs.personal import personalise
from florilegium.clients.core.base import Answer
from florilegium.clients.core.export import load_model
from florilegium.clients.core.phases import phase
from florilegium.clients.core.training import evaluate
from florilegium.clients.core.wire import unpack
from florilegium.clients.ppfe import PPFEClient, coefficient, reweight
from florilegium.common.errors import BudgetSpentError, ConfigurationError, DataError
from florilegium.common.seeds import torch_generator
from florilegium.models.ensemble import Ensemble
from florilegium.models.networks import build
from florilegium.models.parameters import Arrays, get_arrays, num_bytes, set_arrays
from florilegium.models.reduction import factorise
from florilegium.partitions.clientdata import Examples, simulated
from florilegium.partitions.federation import federate
from florilegium.strategies.core.round import Round
from florilegium.strategies.exchange.exchange import Outcome
from florilegium.strategies.fedavg import FedAvg
from florilegium.strategies.folder.metrics_file import read_metrics
from florilegium.strategies.folder.run_folder import read_checkpoint
from tests.grid import run_app
from tests.support import TASK, Value, config, make_client, perform, settings

Run = Callable[..., Path]
STAGES: dict[str, Value] = {
    "ppfe.personal-blocks": "0,1,2", "ppfe.stage-rounds": "2,2,2", "ppfe.ranks": "16,8,4", "rounds": 6,
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs PPFE on small data under a name, and returns the run's folder."""

    def start(name: str, nodes: int = 2, intercept: Callable[[Message], Message | None] | None = None,
              **keys: Value) -> Path:  # fmt: skip
        keys = {"method": "ppfe", "num-clients": 4, "evaluate-every": 0, "participation": 0.5,
                "final-participation": 1.0, "local-epochs": 1, "batch-size": 32, **STAGES, **keys}  # fmt: skip
        names = {} if "resume" in keys else {"run-name": name}
        run_app(config(**{**keys, **names, "runs-dir": str(tmp_path)}), nodes, intercept=intercept)
        return tmp_path / name

    return start


def _model(path: Path) -> dict[str, np.ndarray]:
    return dict(read_checkpoint(path).arrays)


def _state(path: Path, client: int | str, part: str) -> dict[str, np.ndarray]:
    return load_file(sorted((path / "clients" / str(client)).glob(f"{part}-*"))[-1])


class TestBoosting:
    # Four examples, the second wrong: ε = 1/4, β = ½ ln 3; ω ∝ (1, √3, 1, 1).
    LOSSES = np.array([0.0, 1.0, 0.0, 0.0])

    def test_a_worked_example(self) -> None:
        ω = np.ones(4)
        β = coefficient(self.LOSSES, ω, 1.0, 0.01)
        assert β == pytest.approx(0.5 * math.log(3))
        expected = np.array([1, math.sqrt(3), 1, 1]) * 4 / (3 + math.sqrt(3))
        np.testing.assert_allclose(reweight(self.LOSSES, ω, β), expected)

    def test_weights_count_in_the_error(self) -> None:
        # ε = 2/(4·2) of a loss bounded by 2 and weights (1, 2, ½, ½).
        β = coefficient(np.array([0.0, 1.0, 0.0, 0.0]), np.array([1.0, 2.0, 0.5, 0.5]), 2.0, 0.01)
        assert β == pytest.approx(0.5 * math.log(0.75 / 0.25))

    def test_wrong_examples_gain_their_share(self) -> None:
        # Wrong examples gain e^β: their share goes from ε to ε e^β / (ε e^β + 1 − ε).
        ω = np.full(10, 1.0)
        losses = np.array([1.0] * 3 + [0.0] * 7)
        β = coefficient(losses, ω, 1.0, 0.01)
        after = reweight(losses, ω, β)
        expected = 0.3 * math.exp(β) / (0.3 * math.exp(β) + 0.7)
        assert (after * losses).sum() / after.sum() == pytest.approx(expected)
        assert after.sum() == pytest.approx(10)

    def test_a_perfect_and_a_hopeless_model(self) -> None:
        ω = np.ones(5)
        assert coefficient(np.zeros(5), ω, 1.0, 0.01) == pytest.approx(0.5 * math.log(99))
        assert coefficient(np.ones(5), ω, 1.0, 0.01) == 0.0
        np.testing.assert_array_equal(reweight(np.ones(5), ω, 0.0), ω)
        np.testing.assert_allclose(reweight(np.zeros(5), ω, 2.0), ω)


class TestLimits:
    def test_one_stage_is_fedavg(self, run: Run) -> None:
        keys: dict[str, Value] = {"rounds": 3, "ppfe.personal-blocks": "0", "ppfe.stage-rounds": "3", "ppfe.ranks": ""}
        ppfe, fedavg = run("ppfe", **keys), run("fedavg", **{**keys, "method": "fedavg"})
        for name, array in _model(fedavg).items():
            np.testing.assert_array_equal(_model(ppfe)[name], array)
        for figure in ("accuracy", "std", "worst_decile"):
            assert read_metrics(ppfe)[-1]["seen"][figure] == read_metrics(fedavg)[-1]["seen"][figure]

    def test_one_personal_stage_is_fedper(self, run: Run) -> None:
        keys: dict[str, Value] = {"rounds": 3, "ppfe.personal-blocks": "1", "ppfe.stage-rounds": "3", "ppfe.ranks": ""}
        ppfe, fedper = run("ppfe", **keys), run("fedper", **{**keys, "method": "fedper"})
        for name, array in _model(fedper).items():
            np.testing.assert_array_equal(_model(ppfe)[name], array)
        for client in range(4):
            for name, array in _state(fedper, client, "state").items():
                np.testing.assert_array_equal(_state(ppfe, client, "head1")[name], array)
        assert read_metrics(ppfe)[-1]["seen"]["accuracy"] == read_metrics(fedper)[-1]["seen"]["accuracy"]

    def test_the_first_stage_of_many_is_fedavg_too(self, run: Run) -> None:
        ppfe, fedavg = run("ppfe"), run("fedavg", method="fedavg", rounds=2)
        shared = _state(ppfe, "_node", "shared1")
        for name, array in _model(fedavg).items():
            np.testing.assert_array_equal(shared[name], array)

    def test_packing_does_not_matter(self, run: Run) -> None:
        # A full batch a round: sums in another order then differ by rounding, which no long training can amplify.
        keys: dict[str, Value] = {"local-epochs": 1, "batch-size": 10_000}
        models = [_model(run(f"nodes{n}", nodes=n, **keys)) for n in (1, 3)]
        for name, array in models[0].items():
            np.testing.assert_allclose(models[1][name], array, atol=1e-6)


class TestStages:
    def test_ever_fewer_blocks_travel(self, run: Run) -> None:
        sent: dict[int, set[str]] = {}

        def look(message: Message) -> None:
            if message.metadata.message_type == "train":
                names = {name.partition(".")[0] for name in unpack(message.content["arrays"])}
                sent.setdefault((int(message.content["config"]["round"]) + 1) // 2, set()).update(names)

        run("stages", intercept=look)
        assert sent == {1: {"fc1", "fc2", "fc3"}, 2: {"fc1", "fc2"}, 3: {"fc1"}}

    def test_bytes_are_those_of_the_stages(self, run: Run) -> None:
        path = run("bytes")
        stages = [_state(path, "_node", f"shared{t}") for t in (1, 2, 3)]
        # In each stage a round with 2 clients, one with all 4, and the final model to all 4.
        assert read_metrics(path)[-1]["bytes_down"] == sum((2 + 4 + 4) * num_bytes(arrays) for arrays in stages)
        assert read_metrics(path)[-1]["bytes_up"] == sum((2 + 4) * num_bytes(arrays) for arrays in stages)
        numbers = [
            stage["parameters_sent"] for stage in json.loads((path / "summary.json").read_text())["ppfe"]["stages"]
        ]
        assert numbers == [num_bytes(arrays) / 4 for arrays in stages]

    def test_the_third_stage_is_of_low_rank_on_both_sides(self, run: Run) -> None:
        path = run("ranks")
        assert _state(path, "_node", "shared3")["fc1.1.first"].shape == (16, 64)
        assert _state(path, 0, "head3")["fc2.0.first"].shape == (8, 64)
        assert _state(path, 0, "head3")["fc3.first"].shape == (4, 32)
        assert "fc3.weight" in _state(path, 0, "head2")

    @pytest.mark.parametrize(
        ("warm_start", "reduction"), [("previous", "none"), ("previous", "low-rank"), ("first", "low-rank")]
    )
    def test_a_new_stage_starts_where_the_setting_says(self, warm_start: str, reduction: str, run: Run) -> None:
        begun: dict[int, dict[str, np.ndarray]] = {}
        drawn: set[str] = set()

        def look(message: Message) -> None:
            if message.metadata.message_type == "train" and message.content["config"]["phase"] == "train":
                server_round = int(message.content["config"]["round"])
                begun.setdefault(server_round, unpack(message.content["arrays"]))
                drawn.update(message.content["config"]["clients"] if server_round > 2 else [])

        # One client a round: others keep the heads that a stage gave them.
        path = run("start", intercept=look, **{
            "ppfe.warm-start": warm_start, "ppfe.reduction": reduction,
            "final-participation": 0.0, "cohort-size": 1, "num-clients": 6,
        })  # fmt: skip
        shared = {t: _state(path, "_node", f"shared{t}") for t in (1, 2)}
        for stage in (2, 3):
            if reduction == "none" or stage == 2:
                for name, array in begun[2 * stage - 1].items():
                    np.testing.assert_array_equal(array, shared[stage - 1][name])
        idle = min({"0", "1", "2", "3", "4", "5"} - drawn)
        second, third = _state(path, idle, "head2"), _state(path, idle, "head3")
        for name, array in second.items():
            np.testing.assert_array_equal(array, shared[1][name])
        # A newly personal block comes from the shared one, the others from the client's own; or all from stage 1.
        before = shared[2] | second if warm_start == "previous" else shared[1]
        expected = before if reduction == "none" else factorise(before, {"fc1.1": 16, "fc2.0": 8, "fc3": 4})
        assert (third | begun[5]).keys() == expected.keys()
        for name, array in (third | begun[5]).items():
            np.testing.assert_array_equal(array, expected[name])

    def test_every_layer_is_given_a_low_rank_where_asked_for(self, run: Run) -> None:
        """A rank that is cut to min(N, M) saves nothing; by default such a layer stays as it is."""
        keys: dict[str, Value] = {"ppfe.ranks": "16,40,20"}
        saving, always = (_state(run(f, **keys, **{"ppfe.factorise": f}), 0, "head3") for f in ("saving", "always"))
        assert {name for name in saving if "weight" in name} == {"fc2.0.weight", "fc3.weight"}
        shapes = {name: array.shape for name, array in always.items() if "bias" not in name}
        assert shapes == {
            "fc2.0.first": (32, 64), "fc2.0.second": (32, 32), "fc3.first": (10, 32), "fc3.second": (10, 10),
        }  # fmt: skip

    def test_momentum_and_moments_begin_anew_with_a_stage(self, run: Run) -> None:
        """What Adam remembers is of the last stage's blocks, in their form."""
        path = run("adam", **{"server-optimizer": "fedadam", "server-learning-rate": 0.001})
        state = read_checkpoint(path).state
        assert {name.split(".")[0] for name in state if name.startswith("velocity/")} == {
            "velocity/fc1", "velocity/square:fc1",
        }  # fmt: skip

    def test_stages_begin_and_end_where_nothing_can_be_paid_for(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody has a budget for rounds 3 and 4, all of stage 2, nor for the end of stage 1."""
        train, ask = FedAvg.train_round, Round.ask

        def unpaid(strategy: FedAvg, round: Round, model: Arrays) -> Arrays:
            if round.number in (3, 4):
                raise BudgetSpentError("nobody can pay")
            return train(strategy, round, model)

        def unended(round: Round, name: str, cohort: Sequence[str], **request: Any) -> Outcome:
            if (round.number, name) == (2, "finish"):
                raise BudgetSpentError("nobody can pay")
            return ask(round, name, cohort, **request)

        monkeypatch.setattr(FedAvg, "train_round", unpaid)
        monkeypatch.setattr(Round, "ask", unended)
        path = run("spent", **{"ppfe.reduction": "none"})
        assert _state(path, 0, "boosting")["stages"].tolist() == [2, 3]
        assert {name.partition(".")[0] for name in _model(path)} == {"fc1"}
        one = run("one", rounds=2, **{"ppfe.stage-rounds": "2", "ppfe.personal-blocks": "0", "ppfe.ranks": ""})
        for name, array in _state(path, "_node", "shared2").items():  # stage 2 is what stage 1 has left
            np.testing.assert_array_equal(array, _model(one)[name])

    def test_masked_weights_stay_zero_and_are_the_same_on_all_clients(self, run: Run) -> None:
        path = run("sparse", **{"ppfe.reduction": "sparse"})
        zeros = [_state(path, client, "head3")["fc3.weight"] == 0 for client in range(4)]
        assert all(np.array_equal(zeros[0], other) for other in zeros)
        assert zeros[0].sum() == 96  # 30 % of 32 × 10
        assert (_state(path, 0, "head3")["fc2.0.weight"] == 0).sum() == 205  # 10 % of 64 × 32

    def test_hidden_units_of_personal_layers_shrink(self, run: Run) -> None:
        path = run("width", **{"ppfe.reduction": "width", "ppfe.width-exponent": 0.5})
        assert _state(path, 0, "head3")["fc3.weight"].shape == (10, math.ceil(32 / math.sqrt(3)))

    def test_weights_stay_uniform_without_reweighting(self, run: Run) -> None:
        path = run("uniform", **{"ppfe.reweighting": False})
        weights = _state(path, 0, "boosting")["weights"]
        np.testing.assert_array_equal(weights, np.ones_like(weights))

    @pytest.mark.parametrize("by", ["ensemble", "stage"])
    @pytest.mark.parametrize(("loss", "largest"), [("zero-one", 1.0), ("cross-entropy", 2.0)])
    def test_coefficients_and_weights_are_those_of_the_members(
        self, loss: str, largest: float, by: str, run: Run
    ) -> None:
        # Once more from the files that a client has, with networks put together by hand.
        path = run("again", rounds=8, partitioner="iid", **{
            "learning-rate": 0.1, "ppfe.personal-blocks": "0,1", "ppfe.stage-rounds": "6,2", "ppfe.ranks": "",
            "ppfe.loss": loss, "ppfe.max-loss": largest, "ppfe.reweight-by": by,
        })  # fmt: skip
        data = simulated(*federate(settings(num_clients=4, partitioner="iid")), 1).train

        def losses(probabilities: Tensor) -> np.ndarray:
            if loss == "zero-one":
                return (probabilities.argmax(dim=1) != data.y).numpy().astype(float)
            own = probabilities[torch.arange(len(data)), data.y].double().numpy()
            assert (-np.log(own) > largest).any()
            return np.minimum(-np.log(own), largest)

        ω, betas, outputs = np.ones(len(data)), [], []
        for stage in (1, 2):
            model = build("mlp", (1, 8, 8), 10, 1)
            set_arrays(model, _state(path, "_node", f"shared{stage}") | _state(path, 1, f"head{stage}"))
            with torch.no_grad():
                outputs.append(model(data.x).softmax(dim=1))
            ε = (ω * losses(outputs[-1])).sum() / (largest * ω.sum())
            ε = min(max(ε, 0.01), 0.99)
            betas.append(max(0.0, 0.5 * math.log((1 - ε) / ε)))
            mixed = sum((β * p for β, p in zip(betas, outputs, strict=True)), torch.zeros_like(outputs[0])) / sum(betas)
            ω = ω * np.exp(betas[-1] * losses(mixed if by == "ensemble" else outputs[-1]))
            ω *= len(ω) / ω.sum()
        kept, rounding = _state(path, 1, "boosting"), 1e-7 if loss == "zero-one" else 1e-5  # logits are of float32
        np.testing.assert_allclose(kept["betas"], betas, rtol=rounding)
        np.testing.assert_allclose(kept["weights"], ω, rtol=rounding)
        assert min(betas) > 0
        assert np.ptp(ω) > 0

    def test_coefficients_may_come_from_held_out_examples(self, run: Run) -> None:
        keys: dict[str, Value] = {
            "partitioner": "iid",
            "validation-fraction": 0.3,
            "learning-rate": 0.2,
            "local-epochs": 4,
        }
        path = run("held", **{**keys, "ppfe.coefficients": "held-out", "ppfe.reduction": "none"})
        whole = simulated(*federate(settings(num_clients=4, partitioner="iid")), 1)
        held = whole.hold_back(0.3, torch_generator(int(config()["seed"]), "validation", "1"), TASK).validation
        kept = _state(path, 1, "boosting")
        assert len(held) != len(kept["weights"])
        for stage, β in zip((1, 2, 3), kept["betas"], strict=True):
            model = build("mlp", (1, 8, 8), 10, 1)
            set_arrays(model, _state(path, "_node", f"shared{stage}") | _state(path, 1, f"head{stage}"))
            ε = 1 - evaluate(model, held, task=TASK)["accuracy"]
            assert 0.01 < ε < 0.5
            assert β == pytest.approx(0.5 * math.log((1 - ε) / ε), rel=1e-5)

    def test_held_out_coefficients_need_held_out_examples(self, run: Run) -> None:
        with pytest.raises(ConfigurationError, match=r"ppfe.coefficients: .* set validation-fraction"):
            run("none", **{"ppfe.coefficients": "held-out"})

    def test_held_out_coefficients_leave_no_held_out_examples_to_measure_by(self, run: Run) -> None:
        keys = {"ppfe.coefficients": "held-out", "validation-fraction": 0.3, "evaluate-on": "validation"}
        with pytest.raises(ConfigurationError, match=r"ppfe\.coefficients: .*evaluate-on = 'validation'"):
            run("both", **keys)

    @pytest.mark.parametrize(("later_stage", "shared_rate"), [(2, 0.02), (3, 0.1)])
    def test_each_part_has_its_rate(self, later_stage: int, shared_rate: float, run: Run) -> None:
        # One full batch of plain SGD in stage 2: from what stage 1 has left, −η times the gradient.
        path = run("rates", rounds=2, **{
            "ppfe.personal-blocks": "0,1", "ppfe.stage-rounds": "1,1", "ppfe.ranks": "", "ppfe.reweighting": False,
            "ppfe.shared-learning-rate": 0.02, "ppfe.later-stage": later_stage, "learning-rate": 0.1, "momentum": 0.0,
            "batch-size": 10_000, "weighting": "uniform",
        })  # fmt: skip
        begun, steps = _state(path, "_node", "shared1"), []
        for client in range(4):
            data = simulated(*federate(settings(num_clients=4)), client).train
            model = build("mlp", (1, 8, 8), 10, 1)
            set_arrays(model, begun)
            cross_entropy(model(data.x), data.y).backward()
            steps.append({n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None})
            for name, array in _state(path, client, "head2").items():
                np.testing.assert_allclose(array, begun[name] - 0.1 * steps[-1][name], atol=1e-6)
        for name, array in _model(path).items():
            expected = begun[name] - shared_rate * np.mean([step[name] for step in steps], axis=0)
            np.testing.assert_allclose(array, expected, atol=1e-6)

    def test_the_last_model_alone_predicts_where_asked_for(self, run: Run) -> None:
        figures = read_metrics(run("last", **{"ppfe.combination": "last"}))[-1]["seen"]
        assert figures["accuracy"] == figures["accuracy_stage3"] == figures["accuracy_ensemble3"]
        assert figures["accuracy"] != figures["accuracy_stage2"]

    def test_data_that_have_changed_since_a_stage_are_named(self, tmp_path: Path) -> None:
        model = build("mlp", (1, 8, 8), 10, 1)
        client = make_client(Examples(torch.zeros(5, 1, 8, 8), torch.zeros(5).long()), model, folder=tmp_path,
                             method="ppfe", **STAGES)  # fmt: skip
        kept = {"stages": np.ones(1), "betas": np.ones(1), "weights": np.ones(3)}
        client.state.save({**kept, "outputs": np.zeros((1, 3, 10), np.float32)}, "boosting")
        with pytest.raises(DataError, match=r"had 3 training examples when stage 1 ended, .* and has 5 now"):
            perform(client, "train", get_arrays(model), round=3)

    def test_weights_reach_the_training(self, run: Run) -> None:
        keys: dict[str, Value] = {
            "local-epochs": 3,
            "batch-size": 10,
        }  # after one epoch of batches of 32 both heads are equal
        with_, without = run("with", **keys), run("without", **keys, **{"ppfe.reweighting": False})
        assert not np.array_equal(_state(with_, 0, "head2")["fc3.weight"], _state(without, 0, "head2")["fc3.weight"])

    def test_a_client_that_misses_the_end_of_a_stage_goes_on_without_that_member(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        honest = PPFEClient.finish

        def finish(client: PPFEClient, arrays: Arrays) -> Answer:
            if client.client_id == "1" and client.round == 4:
                raise RuntimeError("away")
            return honest(client, arrays)

        monkeypatch.setattr(PPFEClient, "finish", phase(finish))
        path = run("missed")
        assert _state(path, 1, "boosting")["stages"].tolist() == [1, 3]
        assert _state(path, 2, "boosting")["stages"].tolist() == [1, 2, 3]


class TestResume:
    @pytest.mark.parametrize(("round_", "phase"), [(5, "train"), (7, "train"), (8, "train"), (8, "finish")])
    def test_after_dying_in_any_phase_is_bit_identical(self, round_: int, phase: str, run: Run) -> None:
        # Checkpoints after rounds 3 and 6. Of two messages the first is answered, so that the dead attempt leaves
        # heads, weights and a whole finished stage behind that no checkpoint knows of.
        keys: dict[str, Value] = {"ppfe.stage-rounds": "2,2,4", "rounds": 8, "evaluate-every": 3,
                                  "ppfe.warm-start": "first", "server-momentum": 0.5}  # fmt: skip
        whole = run("whole", **keys)
        met = []

        def die(message: Message) -> Message | None:
            config = message.content.get("config", {"round": 0, "phase": ""})
            if config["round"] == round_ and config["phase"] == phase:
                met.append(message)
                if len(met) == 2:
                    raise KeyboardInterrupt
            return None

        with pytest.raises(KeyboardInterrupt):
            run("broken", intercept=die, **keys)
        broken = whole.parent / "broken"
        assert read_checkpoint(broken).round == (3 if round_ == 5 else 6)
        run("broken", resume="broken", **keys)
        for name, array in _model(whole).items():
            np.testing.assert_array_equal(_model(broken)[name], array)
        assert read_metrics(whole)[-1]["seen"] == read_metrics(broken)[-1]["seen"]
        for client in range(4):
            for part in ("boosting", "head2", "head3"):
                for name, array in _state(whole, client, part).items():
                    np.testing.assert_array_equal(_state(broken, client, part)[name], array)


def test_the_exported_ensemble_predicts_as_in_the_run(run: Run, tmp_path: Path) -> None:
    path = run("exported")
    model, card = load_model(personalise(path, tmp_path / "model", "2"))
    assert isinstance(model, Ensemble)
    assert card.ensemble == "probabilities"
    data = simulated(*federate(settings(num_clients=4)), 2)
    with (path / "clients.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["client"] == "2")
    loss, accuracy = evaluate(model, data.test, task=TASK).values()
    assert accuracy == pytest.approx(float(row["accuracy"]))
    assert loss == pytest.approx(float(row["loss"]), rel=1e-5)


def test_the_reduced_model_of_a_client_without_a_finished_stage_can_be_exported(run: Run, tmp_path: Path) -> None:
    path = run("unseen", **{"unseen-fraction": 0.25})
    unseen = int(np.flatnonzero(federate(settings(num_clients=4, unseen_fraction=0.25))[0].unseen)[0])
    model, card = load_model(personalise(path, tmp_path / "model", str(unseen)))
    assert not card.ensemble
    assert "fc1.1.first" in dict(model.named_parameters())


@pytest.mark.long
def test_the_ensemble_is_learned(run: Run) -> None:
    # Two or three classes per client; over seeds 1 to 3 it ends at 0.98, stage 1 alone below 0.66.
    path = run(
        "learned", rounds=12, **{"ppfe.stage-rounds": "4,4,4", "num-clients": 10, "local-epochs": 5, "batch-size": 10}
    )
    figures = read_metrics(path)[-1]["seen"]
    assert figures["accuracy"] > 0.85
    assert figures["accuracy"] == figures["accuracy_ensemble3"]


class TestBadInput:
    @pytest.mark.parametrize(
        ("keys", "said"),
        [
            ({"ppfe.personal-blocks": "0,1,2,3", "ppfe.stage-rounds": "1,1,1,3", "ppfe.ranks": "1,1,1;1,1,1"},
             r"ppfe.personal-blocks: 3 of the network's blocks .* it has 3"),
            ({"ppfe.stage-rounds": "2,2"}, "ppfe.stage-rounds: 2 numbers for 3 stages"),
            ({"ppfe.stage-rounds": "2,2,3"}, "ppfe.stage-rounds: '2,2,3' is 7 rounds, but rounds = 6"),
            ({"ppfe.stage-rounds": "2,x,3"}, "ppfe.stage-rounds: '2,x,3' is not a comma-separated list"),
            ({"ppfe.ranks": "3,3"}, r"ppfe.ranks: '3,3' must give a rank for each of the 3 dense layers"),
            ({"ppfe.ranks": "3,3,3;2,2,2"}, "ppfe.ranks: 2 lists of ranks, but 1 stages"),
            ({"ppfe.ranks": "0,3,3"}, "ppfe.ranks: a rank is at least 1"),
            ({"ppfe.personal-blocks": "0,2,1"}, "ppfe.personal-blocks: '0,2,1': what is personal stays so"),
            ({"ppfe.max-loss": 2.0}, "ppfe.max-loss: the 0–1 loss is at most 1"),
        ],
    )  # fmt: skip
    def test_is_named_before_any_client_is_asked(self, keys: dict[str, Value], said: str, tmp_path: Path) -> None:
        everything = {"method": "ppfe", "num-clients": 4, **STAGES, **keys, "runs-dir": str(tmp_path), "run-name": "r"}
        with pytest.raises(ConfigurationError, match=said):
            run_app(config(**everything))

    def test_a_client_with_one_example(self, run: Run) -> None:
        path = run("one", **{"num-clients": 3, "samples-per-client": 1, "partitioner": "iid"})
        assert _state(path, 0, "boosting")["weights"].tolist() == [1.0]
