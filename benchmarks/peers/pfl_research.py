"""The common task in pfl-research; the working folder is to be empty.

torchrun --nproc-per-node WORKERS -m benchmarks.peers.pfl_research METHOD ROUNDS WORKERS
"""

from __future__ import annotations

import os

import torch

from benchmarks.peers.shared import arguments, count_steps, stamp
from benchmarks.pfl_research import seconds_per_round


def main() -> None:
    """Run the method in one of the processes; the first prints time stamps."""
    method, rounds, _ = arguments()
    count_steps()

    def ended(number: int) -> None:
        if os.environ.get("RANK", "0") == "0":
            stamp(number)

    seconds_per_round("lenet", rounds - 1, method=method, ended=ended)
    if torch.distributed.is_initialized():  # a process that ends before the others makes them fail
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
