#!/usr/bin/env bash
# Subject: numpy
# What: On processors with AVX2 or AVX-512, np.partition of an array with mostly equal entries takes several times as long as np.sort of it; argpartition longer still.
# Symptom: Top-k compression of an update that is mostly zeros takes minutes for a model of a gigabyte, where a dense one takes seconds.
# Concerns: sparsified updates, robust rules and thresholds that select from arrays with many zeros
# Expected: partition is at most as slow as sort, as with random entries, and as in NumPy without these instructions.
# Seen: numpy 2.4.6, 4 million float32, 99 % of them zero, the largest 2 %: partition takes 35 times as long as sort with AVX-512, 6 to 10 times with AVX2, a fifth without. Random entries: a sixth, a sixth, a tenth.
# Here: Zeros are left out before the largest entries are selected; equal ones are taken in order.
# Test: tests/clients/layers/test_compression.py::test_of_entries_of_equal_length_the_first_are_sent
. "$(dirname "$0")/environment"
install numpy==2.4.6
cat > ratio.py << 'END'
import time
from collections.abc import Callable

import numpy as np

SIZE = 4_000_000
rng = np.random.default_rng(0)
random = rng.random(SIZE, dtype=np.float32)
zeros = np.zeros(SIZE, np.float32)
zeros[rng.choice(SIZE, SIZE // 100, replace=False)] = 1 + rng.random(SIZE // 100, dtype=np.float32)


def seconds(work: Callable[[], object]) -> float:
    """Return the least processor time of five calls."""
    taken = []
    for _ in range(5):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


for entries in (random, zeros):
    print(seconds(lambda: np.partition(entries, SIZE - SIZE // 50)) / seconds(lambda: np.sort(entries)))
END
all=$(python ratio.py)
avx2=$(NPY_DISABLE_CPU_FEATURES="X86_V4" python ratio.py)
neither=$(NPY_DISABLE_CPU_FEATURES="X86_V4 X86_V3" python ratio.py)
ALL=$all AVX2=$avx2 NEITHER=$neither python - << 'END'
import os

for name in ("ALL", "AVX2", "NEITHER"):
    random, zeros = map(float, os.environ[name].split())
    print(f"{name}: partition ÷ sort, random entries {random:.2f}, mostly zeros {zeros:.2f}")
    assert random < 1
    assert zeros < 1 if name == "NEITHER" else zeros > 3
END
