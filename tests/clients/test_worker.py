"""Settings of a worker process."""

from __future__ import annotations

import torch

from clients.worker import tune_process


def test_denormal_numbers_become_zero() -> None:
    tune_process("cpu", one_thread=False)
    assert float(torch.tensor(1e-30) * torch.tensor(1e-10)) == 0.0
