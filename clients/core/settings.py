"""The configuration keys of the model and of local training, and those that clients and server share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, SerializeAsAny, ValidationInfo, field_validator

from florilegium.clients.attacks.registry import ATTACKS
from florilegium.clients.core.batch_orders import BATCH_ORDERS, EACH_ROUND
from florilegium.clients.core.compression.settings import CompressionSettings
from florilegium.common.calls import parse_calls
from florilegium.common.settings import NoHyper, Section, check_folder, key
from florilegium.models.settings import NetworkSettings
from florilegium.partitions.settings import SourceSettings
from florilegium.privacy.settings import PrivacySettings

STORE = "store"
"""Value of key ``data-from`` with which workers of a cluster read no data."""


def _check_vectorise(value: int | str) -> int | str:
    if value != "auto" and not (str(value).isascii() and str(value).isdecimal() and int(value) >= 1):
        raise ValueError(f"'{value}' is neither a number of clients ≥ 1, such as 16, nor 'auto'")
    return value


def _check_batch_order(name: str) -> str:
    if problem := BATCH_ORDERS.problem(name):
        raise ValueError(problem.removeprefix("batch-order: "))
    return name


def _check_augment(text: str) -> str:
    if text not in ("none", "crop-flip"):
        parse_calls(text)
    return text


class SharedSettings(NetworkSettings, SourceSettings):
    """Keys that both clients and server read."""

    title = "Method and local training"

    method: str = key("fedavg", "the method", values="`florilegium methods`")
    optimizer: Literal["sgd", "adam"] = key("sgd", "local optimizer", where="descends=true")
    local_epochs: int = key(
        5, "epochs of local training per round", ge=1, where="local-steps=0", also="epochs num-epochs local-ep"
    )
    local_steps: int = key(0, "batches of local training per round, instead of epochs; 0: count epochs", ge=0)
    batch_size: int = key(10, "examples in a batch", ge=1, also="batch bs train-batch-size")
    batch_order: Annotated[str, AfterValidator(_check_batch_order)] = key(
        EACH_ROUND,
        "order of a client's examples: new in every round, or a round goes on where the client's last one stopped "
        "([more](data.md#batches))",
        values=", ".join((*(f"`{name}`" for name in BATCH_ORDERS.own), "`package.module:function`")),
    )
    bucket: bool = key(
        False,
        "batches of texts of similar length, which need less padding ([more](pretrained.md#batches))",
    )
    micro_batch: int = key(
        0,
        "compute a batch's gradient in parts of this many examples, which needs less memory; 0: at once "
        "([more](pretrained.md#larger-models))",
        ge=0,
    )
    precision: Literal["float32", "bf16"] = key(
        "float32",
        "of local training: `bf16` multiplies matrices in bfloat16; parameters, sums and evaluations stay in float32 "
        "([more](pretrained.md#larger-models))",
    )
    learning_rate: float = key(
        0.05, "learning rate of the local optimizer", gt=0, where="descends=true", also="lr eta client-lr"
    )
    learning_rate_decay: float = key(
        1.0,
        "in round t clients' learning rates are multiplied by `learning-rate-decay`^⌊(t − 1)/`decay-rounds`⌋; "
        "`adaptation-rate`, pFedMe's `personal-learning-rate`, FedALA's `weight-learning-rate` and FedL2P's "
        "learning rates do not decay",
        gt=0, le=1, where="descends=true", also="lr-decay",
    )  # fmt: skip
    decay_rounds: int = key(
        10, "rounds after which the learning rate decays once", ge=1, where="learning-rate-decay!=1 and descends=true"
    )
    momentum: float = key(0.0, "momentum of local SGD", ge=0, lt=1, where="optimizer=sgd and descends=true")
    weight_decay: float = key(0.0, "weight decay of the local optimizer", ge=0, where="descends=true", also="wd l2")
    augment: Annotated[str, AfterValidator(_check_augment)] = key(
        "none",
        "random changes of training images, new in every epoch: shifts by up to 4 pixels and mirrors; or transforms of "
        "`torchvision.transforms.v2` ([more](data.md#augmentation))",
        values='`none`, `crop-flip`, or names such as `"RandomRotation(degrees=10)+RandomGrayscale"`',
    )
    max_grad_norm: float = key(
        0.0,
        "clip each local step's gradient to this norm; 0: no clipping",
        ge=0,
        where="descends=true",
        also="clip-grad grad-clip gradient-clipping",
    )
    finetune_epochs: int = key(
        0, "epochs for which each client fine-tunes a copy of the model before a test", ge=0, where="descends=true"
    )
    finetune_bn: Literal["running", "client", "global", "batch"] = key(
        "running",
        "batch-norm statistics in fine-tuning: running averages, the client's own, the received ones, or each batch's "
        "own ([details](methods/fedbn.md#finetune-bn))",
    )
    validation_fraction: float = key(
        0.0,
        "share of each labeled client's training examples that is held out, stratified by class, to report "
        "`validation_loss`, and `validation_accuracy` or the task's other figures",
        ge=0, lt=1,
    )  # fmt: skip
    evaluate_on: Literal["test", "validation"] = key(
        "test",
        "what evaluations measure on: the test examples; or, so that no test example is read, those that "
        "`validation-fraction` holds out",
    )
    weighting: Literal["examples", "uniform"] = key(
        "examples", "weight of each client in the average: its number of examples, or 1"
    )
    max_update_norm: float = key(
        0.0,
        "updates with a larger norm are rejected; 0: no limit in a simulation; on devices ten times the median norm "
        "of the updates accepted lately ([details](deployment.md#what-a-device-may-say))",
        ge=0,
    )
    secure_aggregation: bool = key(
        False,
        "whether the server sees sums over a cohort alone, by masks that the clients agree on "
        "([how](secure-aggregation.md))",
    )
    secure_range: float = key(
        2.0**20,
        "with secure aggregation, the largest absolute value of what a client returns as statistics rather than as an "
        "update, which `max-update-norm` bounds",
        gt=0, where="secure-aggregation=true",
    )  # fmt: skip
    runs_dir: Annotated[str, AfterValidator(check_folder)] = key(
        "~/.florilegium/runs", "folder in which run folders are created", values="folder", min_length=1
    )
    attack: str = key(
        "none",
        "what `attackers` do; simulations only ([more](attacks.md#attackers-in-a-simulation))",
        values=", ".join((*(f"`{name}`" for name in ATTACKS.own), "`package.module:Class`")),
    )
    attack_keys: SerializeAsAny[Section] = NoHyper()
    privacy: PrivacySettings = PrivacySettings()
    compression: CompressionSettings = CompressionSettings()

    @field_validator("evaluate_on")
    @classmethod
    def _has_something_to_measure_on(cls, evaluate_on: str, info: ValidationInfo) -> str:
        if evaluate_on == "validation" and not info.data.get("validation_fraction"):
            raise ValueError("no example is held out: set validation-fraction")
        return evaluate_on

    def decay(self, server_round: int) -> float:
        """Return the factor on learning rates in a round: ``learning-rate-decay`` for every past ``decay-rounds``."""
        return self.learning_rate_decay ** (max(0, server_round - 1) // self.decay_rounds)

    def steps(self, examples: int, epochs: int | None = None) -> int:
        """Return the number of steps of local training on this many examples; ``epochs``: instead of a round's."""
        if epochs is None and self.local_steps:
            return self.local_steps
        return (self.local_epochs if epochs is None else epochs) * -(-examples // self.batch_size)


class ClientSettings(SharedSettings):
    """Keys that every client needs to train and evaluate, whatever the method."""

    title = "Clients' machines"

    vectorise: Annotated[int | str, AfterValidator(_check_vectorise)] = key(
        1,
        "number of clients that a worker trains and tests together, in one call ([more](vectorised.md)); `auto`: the "
        "fastest, as measured; results differ by rounding alone",
        values='number ≥ 1, or `"auto"`',
    )
    device: str = key(
        "cpu", "device of the clients", pattern=r"^(cpu|cuda(:\d+)?|auto)$", values="`cpu`, `cuda`, `cuda:N`, `auto`"
    )
    data_from: Literal["folder", "store"] = key(
        "folder",
        "from where workers on a [cluster](cluster.md#machines-without-data) have their clients' rows: each machine's "
        "`data-dir`, or Ray's object store, where the server puts them; results are the same",
    )
    state_dir: Annotated[str, AfterValidator(check_folder)] = key(
        "",
        "folder for clients' state; \"\": the run's folder; a device's `--node-config` overrides it",
        values='folder, ""',
    )
