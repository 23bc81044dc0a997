"""Randomness of a run: every epoch has its own streams, derived from the run's seed alone.

Because no stream outlives its epoch, a run resumed at an epoch boundary needs no saved generator states: it draws
what the uninterrupted run would have drawn. Streams of different purposes are independent, so that switching
augmentation on leaves the order of the examples as it was.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream_seed(purpose: str, seed: int, epoch: int) -> int:
    """The 63-bit seed of one stream in one epoch of a run.

    ``purpose``: "order", "augmentation", "mixing", "model", or "probe" for the outputs before the first epoch.
    """
    digest = hashlib.sha256(f"{purpose}/{seed}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def stream(purpose: str, seed: int, epoch: int) -> torch.Generator:
    """A fresh CPU generator of one stream; on the CPU, so that every device sees the same draws."""
    return torch.Generator("cpu").manual_seed(stream_seed(purpose, seed, epoch))


@contextmanager
def own_global_state(device: torch.device) -> Iterator[None]:
    """Put torch's global generators (CPU and ``device``) back as they were when the block ends."""
    if device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            yield
        return
    count = torch.get_device_module(device).device_count()
    with torch.random.fork_rng(devices=range(count), device_type=device.type):
        yield


def seed_global_state(seed: int, device: torch.device) -> None:
    """Seed the global generators that layers such as dropout draw from, on the CPU and on ``device`` only.

    ``torch.manual_seed`` would also reseed accelerators that the run does not use and that nobody restores.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed_all(seed)
