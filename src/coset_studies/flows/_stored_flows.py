"""Flows that are fitted once: kept in the store by the networks and settings they are fitted with."""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coset.flow import Flow, load_flow, save_flow
from coset.study import Context
from coset.symmetry import Symmetry
from coset_studies.flows._sampled import Kind
from coset_studies.flows._zoos import Networks, Stack, counted

SCHEMA = 1
"""Version of what is stored: to be raised where the same settings come to give another flow."""


def stored_flow(
    context: Context,
    networks: Networks,
    kind: Kind,
    sym: Symmetry,
    stack: Stack,
    steps: int,
    batch_size: int,
    inputs: Tensor | None = None,
    **more: Any,
) -> tuple[Flow, Mapping[str, Any]]:
    """The flow of a kind over the first networks, ``stack``, and the last record of its training.

    A fit that is interrupted goes on where it was.
    """
    config: dict[str, object] = {
        "kind": "flow", "schema": SCHEMA, "networks": asdict(networks), "count": counted(stack), "seed": context.seed,
        "flow": asdict(kind), "steps": steps, "batch size": batch_size, "more": dict(more),
        "inputs": None if inputs is None else list(inputs.shape),
    }  # fmt: skip

    def make() -> tuple[dict[str, Tensor], dict[str, object]]:
        place = context.store.checkpoint(config)
        fit = kind.fit(sym, stack, steps, batch_size, context.seed, inputs, checkpoint=place, **more)
        with tempfile.TemporaryDirectory() as folder:
            save_flow(fit.posterior, path := Path(folder) / "flow")
            content = bytearray(path.read_bytes())
        return {"flow": torch.frombuffer(content, dtype=torch.uint8).clone()}, {"last": dict(fit.trace[-1])}

    entry = context.store.get_or_make(config, make)
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "flow").write_bytes(entry.params["flow"].numpy().tobytes())
        flow = load_flow(path, sym=sym)
    info: Mapping[str, Any] = entry.info
    return flow, info["last"]
