"""What a step frees stays with the process: the next one has no fresh pages to touch."""

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from coset.zoo._memory import keep_freed_memory

def step():
    blocks = [torch.empty(2**20).fill_(1.0) for _ in range(10)]  # ten of 4 MiB, freed together
    return len(blocks)

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
step(), step()
without = faults()
keep_freed_memory()
step(), step()
print(without, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide otherwise what they keep")
def test_memory_that_a_step_frees_is_kept():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    without, kept = map(int, done.stdout.split())
    # Pages may have 4 KiB or, where the system makes huge ones of them, more.
    assert kept < 10
    assert without > 10 * max(kept, 1)
