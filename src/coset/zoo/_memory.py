"""What a step of many networks frees stays with the process, for the next step."""

import torch

_LARGEST = 2**25 - 2**15
"""Bytes of the largest block that glibc learns from, 32 MiB with what it adds to a block."""


def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MiB that are freed, instead of giving them back to the system after every step.

    Fresh pages are filled with zeros at their first touch, which takes a good part of a step of groups of convolutional
    networks (docs/benchmarks.md). glibc keeps twice as much as the largest block that was ever mapped and freed, 32 MiB
    at most (``mallopt(3)``, M_TRIM_THRESHOLD): so one such block is made and freed, which is never touched and takes no
    memory. With other C libraries this does nothing.
    """
    torch.empty(_LARGEST, dtype=torch.uint8, device="cpu")
