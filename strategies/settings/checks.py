"""Keys that do not go together: checks before a run starts, which need no PyTorch.

Each is told why the run's method does not support what is wanted (``gap``); "" where it does, or that is not known yet.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from florilegium.clients.core.batch_orders import EACH_ROUND
from florilegium.common.errors import ConfigurationError, RunError
from florilegium.strategies.robust.registry import RULES
from florilegium.strategies.settings.server import ServerSettings

if TYPE_CHECKING:
    from torch import Tensor, nn


def check_buffered(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if a run cannot have ``mode = "buffered"``.

    Args:
        settings: the run's configuration.
        gap: why the server step of the run's method is no weighted mean of updates; "" if it is one.
    """
    if gap:
        raise ConfigurationError(f"mode: 'buffered' is not supported by method '{settings.method}': {gap}")
    if settings.privacy.unit != "none":
        raise ConfigurationError(
            f"privacy.unit: '{settings.privacy.unit}' counts on cohorts that are drawn at random; with mode = "
            "'buffered' fast clients take part more often, and nothing is amplified. Use mode = 'synchronous'"
        )
    if settings.secure_aggregation:
        raise ConfigurationError(
            "secure-aggregation: its sums are over a cohort that begins together; with mode = 'buffered' there is "
            "none. Use mode = 'synchronous'"
        )
    if settings.aggregation != "mean":
        raise ConfigurationError(
            f"aggregation: '{settings.aggregation}' has no place for the weights of stale updates; with mode = "
            "'buffered' set it to 'mean'"
        )
    if settings.oversample > 1:
        raise ConfigurationError("oversample: with mode = 'buffered' no client is asked in vain; set it to 1")
    if settings.final_participation:
        raise ConfigurationError("final-participation: with mode = 'buffered' all rounds are alike; set it to 0")


def check_compression(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if updates cannot be compressed.

    Args:
        settings: the run's configuration.
        gap: why the run's method cannot compress; "" if it can.
    """
    p, scheme = settings.privacy, settings.compression.scheme
    if scheme == "none":
        return
    key = f"compression.scheme: '{scheme}' is not supported with"
    if gap:
        raise ConfigurationError(f"{key} method '{settings.method}': {gap}")
    if settings.secure_aggregation:
        raise ConfigurationError(
            f"{key} secure-aggregation, whose sums are of integers: it already rounds updates to 32 bits; set it to "
            "'none'"
        )
    if settings.mode == "buffered" and settings.compression.feeds_back:
        raise ConfigurationError(
            f"{key} mode = 'buffered', in which the server uses updates of earlier rounds: a client could not tell "
            "which of its updates was used last; use 'quantise' or 'none'"
        )
    if p.unit == "client" and settings.compression.feeds_back:
        raise ConfigurationError(
            f"{key} privacy.unit = 'client': what a client still owes depends on the rounds in which it took part, "
            "which the account does not cover; use 'quantise' or 'none'"
        )
    if p.noise_at == "device":
        raise ConfigurationError(
            f"{key} privacy.noise-at = 'device': the account is for a sum of noise that nobody rounds; set it to "
            "'server'"
        )
    if p.clip_quantile:
        raise ConfigurationError(f"{key} privacy.clip-quantile: the bound is fixed then; set it to 0")


def check_client_privacy(settings: ServerSettings, gap: str) -> None:
    """Raise :class:`ConfigurationError` if client-level privacy would not hold.

    Args:
        settings: the run's configuration.
        gap: why the run's method breaks the guarantee; "" if it does not.
    """
    if gap:
        raise ConfigurationError(f"privacy.unit: 'client' is not supported by method '{settings.method}': {gap}")
    if settings.weighting != "uniform":
        raise ConfigurationError(
            "weighting: with privacy.unit = 'client' all clients have the same weight; set it to 'uniform' (found: "
            f"'{settings.weighting}')"
        )
    if settings.aggregation != "mean":
        raise ConfigurationError("aggregation: with privacy.unit = 'client' noise is added to sums; set it to 'mean'")
    if settings.oversample > 1:
        raise ConfigurationError(
            "oversample: which clients reply first is not random in a way that privacy accounting can use; set it to 1"
        )
    if settings.max_update_norm and settings.privacy.noise_at == "device":
        raise ConfigurationError(
            "max-update-norm: with privacy.unit = 'client' updates are bounded by privacy.clip-norm; set it to 0"
        )
    if settings.patience or settings.keep == "best":
        raise ConfigurationError(
            "patience, keep: the clients' validation losses, which are not protected, would decide; leave both out"
        )
    if settings.fleet.availability != "always":
        raise ConfigurationError(
            "fleet.availability: how long a client takes decides who is online afterwards, which the account of "
            "privacy.unit = 'client' does not cover; set it to 'always'"
        )
    p = settings.privacy
    if p.sampling == "slots" and settings.final_participation:
        raise ConfigurationError(
            "final-participation: with privacy.sampling = 'slots' each client has its rounds; set it to 0"
        )
    if not p.epsilon and not p.noise_multiplier and (math.isfinite(p.clip_norm) or p.clip_quantile):
        raise ConfigurationError(
            "privacy.unit: 'client' needs privacy.epsilon or privacy.noise-multiplier; without noise nothing is private"
        )


def check_secure_aggregation(settings: ServerSettings, gap: str, unbounded: str) -> None:
    """Raise :class:`ConfigurationError` if sums cannot be secure.

    Args:
        settings: the run's configuration.
        gap: why the run's method needs more than sums; "" if it does not.
        unbounded: why its clients return no updates; "" if they do.
    """
    p = settings.privacy
    if gap:
        raise ConfigurationError(f"secure-aggregation: it is not supported by method '{settings.method}': {gap}")
    _check_groups(settings)
    if settings.oversample > 1:
        raise ConfigurationError("oversample: with secure-aggregation all clients of a cohort count; set it to 1")
    if p.unit == "example":
        raise ConfigurationError(
            "privacy.unit: with 'example' each client reports its own ε, which secure-aggregation cannot carry"
        )
    if settings.patience or settings.keep == "best":
        raise ConfigurationError(
            "patience, keep: they follow clients' validation losses, which secure-aggregation hides; leave both out"
        )
    if not unbounded and p.unit != "client" and not settings.max_update_norm:
        raise ConfigurationError(
            "max-update-norm: with secure-aggregation a bound of updates must be known, since sums are of integers "
            "of limited size; set it to a norm that no client's update exceeds, such as 100"
        )
    if p.clip_quantile:
        raise ConfigurationError("privacy.clip-quantile: with secure-aggregation the bound is fixed; set it to 0")
    if not math.isfinite(p.clip_norm) and p.unit == "client":
        raise ConfigurationError("privacy.clip-norm: with secure-aggregation it must be finite")


def _check_groups(settings: ServerSettings) -> None:
    """Raise :class:`ConfigurationError` unless a rule has sums of groups to compare, and groups have a rule."""
    name, groups = settings.aggregation, settings.secure_groups
    if name != "mean" and groups == 1:
        raise ConfigurationError(
            f"aggregation: '{name}' compares single clients' updates, which secure-aggregation hides; set it to "
            "'mean', or secure-groups to a number of sums that it may compare"
        )
    if name == "mean" and groups > 1:
        raise ConfigurationError(
            f"secure-groups: with aggregation = 'mean', {groups} sums show the server more than one and protect from "
            "nobody; set it to 1, or aggregation to a robust rule"
        )
    if groups > 1 and settings.robust.momentum:
        raise ConfigurationError(
            "robust.momentum: it follows single clients over rounds, which secure-aggregation hides; set it to 0"
        )
    if groups > 1 and not RULES[name].mixes:
        raise ConfigurationError(
            f"aggregation: '{name}' follows single clients over rounds, which secure-aggregation hides; use another"
        )


def check_example_privacy(settings: ServerSettings, gap: str, network: nn.Module, inputs: Tensor) -> None:
    """Raise :class:`ConfigurationError` if example-level privacy would not hold.

    Args:
        settings: the run's configuration.
        gap: why the method's client breaks the guarantee; "" if it does not.
        network: the network that is trained.
        inputs: a batch of inputs for a dry run.
    """
    from torch import nn

    from florilegium.models.dry_run import undisturbed
    from florilegium.models.mixing import mixing
    from florilegium.privacy.alone import unlike_alone  # dp-accounting and Opacus take seconds to import

    p = settings.privacy
    if any(isinstance(module, nn.RNNBase) for module in network.modules()):
        gap = gap or f"Opacus has no gradients of single examples for model = '{settings.model}'"
    if gap:
        raise ConfigurationError(f"privacy.unit: 'example' is not supported by method '{settings.method}': {gap}")
    if settings.patience or settings.validation_fraction:
        raise ConfigurationError(
            "patience, validation-fraction: the held-out examples, and the last round, would depend on all "
            "examples together; set both to 0"
        )
    if settings.batch_order != EACH_ROUND:
        raise ConfigurationError(
            f"batch-order: private batches are sampled anew at every step; set '{EACH_ROUND}' (found: "
            f"'{settings.batch_order}')"
        )
    if settings.finetune_bn != "running":
        raise ConfigurationError("finetune-bn: batch norm mixes examples, which privacy.unit = 'example' forbids")
    if not math.isfinite(p.clip_norm) or not (p.epsilon or p.noise_multiplier):
        raise ConfigurationError(
            "privacy.unit: 'example' needs a finite privacy.clip-norm, and privacy.epsilon or privacy.noise-multiplier"
        )
    if why := mixing(network, inputs):
        raise ConfigurationError(f"model: '{settings.model}' does not go with privacy.unit = 'example': {why}")
    try:
        with undisturbed(network):
            wrong = unlike_alone(network, inputs, ghost=p.gradients == "ghost")
    except RunError as error:
        raise ConfigurationError(
            f"model: '{settings.model}' does not go with privacy.unit = 'example': {error}"
        ) from error
    if wrong:
        raise ConfigurationError(
            f"model: '{settings.model}' does not go with privacy.unit = 'example': Opacus computes wrong gradients of "
            f"single examples for it ('{wrong}' is not that of the example alone); use other layers"
        )
