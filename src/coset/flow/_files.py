"""Flows in files: one safetensors file with field, frame, source and symmetry, sealed with checksums."""

import copy
import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coset._files.sealed import read_sealed, write_sealed
from coset.distribution.files import pack, unpack
from coset.errors import InputError
from coset.flow._baseline import Baseline
from coset.flow._fields import UNITS, FieldSpec, make_field
from coset.flow._flow import Flow
from coset.flow._frame import Frame
from coset.flow._solvers import Solver
from coset.flow._sources import GivenSource, NormalSource, Source, UniformSource, WrappedSource
from coset.flow._space import Space
from coset.flow._training import FlowRecipe
from coset.flow._unit_baseline import UnitBaseline, UnitSource, unit_source
from coset.flow._units import units_of
from coset.geometry import Manifold, Spheres, laid_out
from coset.symmetry import Symmetry
from coset.symmetry.storage import require_fingerprint

KEY = "coset.flow"
FORMAT = 1

_SOURCES: Mapping[str, type[Source]] = {
    "normal": NormalSource,
    "uniform": UniformSource,
    "wrapped-normal": WrappedSource,
    "distribution": GivenSource,
    "units": UnitSource,
}


def save_flow(flow: Flow, path: str | os.PathLike[str]) -> None:
    """Write a flow to a safetensors file, whole or not at all; ``load_flow`` gives it back to the bit."""
    if not isinstance(flow, Flow):
        raise InputError(f"flow is a {type(flow).__name__}; expected a Flow")
    if flow.moves:
        raise InputError("the flow was moved by an element; save the flow as it was fitted, and act on it again")
    frame, space = flow.frame, flow.frame.space
    tensors = {f"like/{name}": tensor for name, tensor in space.like.items() if name not in space.manifold.tied}
    tensors |= {f"reference/{name}": tensor for name, tensor in (frame.reference or {}).items()}
    tensors |= {f"field/{name}": tensor for name, tensor in flow.field.state_dict().items()}
    spheres = []
    for number, item in enumerate(space.manifold.spheres):
        tensors |= {f"sphere {number}/{name}": labels for name, labels in _labels(item, space).items()}
        spheres.append({"key": item.key, "radius": item.radius, "units": item.units.tolist()})
    parts, source = _source_parts(flow.source)
    content = {
        "frame": {
            "geometry": frame.geometry,
            "order": frame.order,
            "last": list(frame.last),
            "factor": frame.factor,
            "offsets": dict(frame.offsets),
        },
        "symmetry": None if frame.symmetry is None else frame.symmetry.to_json(),
        "manifold": {
            "spheres": spheres,
            "shapes": {name: list(shape) for name, shape in space.manifold.shapes.items()},
            "tied": dict(space.manifold.tied),
            "fixed": list(space.manifold.fixed),
            "order": list(space.like),
        },
        "aligned": frame.reference is not None,
        "recipe": dataclasses.asdict(flow.recipe),
        "spec": dataclasses.asdict(flow.spec),
        "solver": dataclasses.asdict(flow.solver),
        "source": source,
    }
    write_sealed(Path(path), KEY, FORMAT, {**tensors, **parts}, content)


def load_flow(path: str | os.PathLike[str], *, sym: Symmetry | None = None, field: nn.Module | None = None) -> Flow:
    """Read what ``save_flow`` wrote, on the CPU; anything else is an InputError that names the file.

    With ``sym`` a flow of another symmetry is refused. ``field``: the network, where it was one of the user's own: its
    weights are those of the file.
    """
    tensors, content = read_sealed(Path(path), KEY, FORMAT, "flow")
    try:
        return _read(tensors, content, sym, field)
    except InputError as error:
        raise InputError(f"flow {path}: {' '.join(str(error).split())}") from error
    except (KeyError, TypeError, AttributeError, RuntimeError, ValueError) as error:
        raise InputError(f"flow {path} is damaged: {' '.join(repr(error).split())}") from error


def _read(tensors: dict[str, Tensor], content: dict[str, Any], sym: Symmetry | None, field: nn.Module | None) -> Flow:
    text = content["symmetry"]
    own = None if text is None else Symmetry.from_json(text)
    if sym is not None:
        if own is None:
            raise InputError("it is of points without a symmetry; expected none given")
        require_fingerprint(own.fingerprint, sym, "it")
    shapes = content["manifold"]
    spheres = [
        laid_out(row["key"], _under(tensors, f"sphere {number}/"), row["radius"])
        for number, row in enumerate(shapes["spheres"])
    ]
    spheres = [
        dataclasses.replace(item, units=torch.tensor(row["units"]))
        for item, row in zip(spheres, shapes["spheres"], strict=True)
    ]
    tied = shapes["tied"]
    known = _under(tensors, "like/")
    like = {name: known[tied.get(name, name)] for name in shapes["order"]}
    sizes = {name: tuple(shape) for name, shape in shapes["shapes"].items()}
    space = Space(Manifold(tuple(spheres), sizes, tied, tuple(shapes["fixed"])), like)
    told = content["frame"]
    reference = _under(tensors, "reference/") if content["aligned"] else None
    frame = Frame(
        own, told["geometry"], told["order"], space, reference, tuple(told["last"]), told["factor"], told["offsets"]
    )
    spec = FieldSpec(**content["spec"])
    if (spec.name == "own") != (field is not None):
        wanted = "field=, the network it was made with" if field is None else "none, since the file says what it is"
        raise InputError(f"its field is {spec.name!r}; expected {wanted}")
    held = _under(tensors, "field/")
    baseline = _baseline(_under(held, "baseline."), spec, space, own, content["source"].get("matched", 0.0))
    # The module that is given stays as it is.
    made = make_field(spec, space, own, baseline, 0, copy.deepcopy(field)).to(held["baseline.m0"].dtype)
    try:
        made.load_state_dict(held)
    except RuntimeError as error:
        told_of = " ".join(str(error).split())[:200]
        raise InputError(f"its field is another network than the one that is given: {told_of}") from error
    solver = content["solver"]
    grid = None if solver["grid"] is None else tuple(solver["grid"])
    source = _source(
        tensors, content["source"], made.baseline, space if told["geometry"] != "euclidean" else space.flat
    )
    recipe = FlowRecipe(**content["recipe"])
    return Flow(frame, source, made.eval(), recipe, spec, Solver(**{**solver, "grid": grid}))


def _baseline(held: dict[str, Tensor], spec: FieldSpec, space: Space, sym: Symmetry | None, matched: float) -> Baseline:
    m0, s0, mu = (held[name] for name in ("m0", "s0", "mu"))
    if spec.name != UNITS or sym is None:
        return Baseline(m0, s0, mu, *(held[name] for name in ("variances", "rest", "basis", "nu")))
    parts = {name: tensor for name, tensor in held.items() if name not in ("m0", "s0", "mu")}
    return UnitBaseline(units_of(space, sym), m0, s0, mu, parts, matched)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _labels(item: Spheres, space: Space) -> dict[str, Tensor]:
    """Parameter → which of the units each entry belongs to, −1 for none: what ``laid_out`` makes spheres of."""
    zeros = {name: torch.zeros(space.manifold.shapes[name], dtype=torch.float64) for name in item.names}
    rows = item.rows(zeros)
    out = {name: tensor - 1 for name, tensor in zeros.items()}
    item.put_rows(out, torch.arange(len(rows), dtype=torch.float64)[:, None].expand_as(rows), zeros)
    return {name: tensor.long() for name, tensor in out.items()}


def _source_parts(source: Source) -> tuple[dict[str, Tensor], dict[str, Any]]:
    kind = next(name for name, cls in _SOURCES.items() if type(source) is cls)
    tensors = {"source/mean": source.mean, "source/std": source.std}
    told: dict[str, Any] = {"kind": kind, "flat": not source.space.curved}
    if isinstance(source, UnitSource):
        told["matched"] = source.scale
    if isinstance(source, WrappedSource):
        tensors["source/centre"] = source.centre
        told["spread"] = source.spread
    if isinstance(source, GivenSource):
        inner, told["content"] = pack(source.distribution, "source/given/")
        tensors |= inner
    return tensors, told


def _source(tensors: Mapping[str, Tensor], told: Mapping[str, Any], baseline: Baseline, space: Space) -> Source:
    cls, moments = _SOURCES[told["kind"]], (tensors["source/mean"], tensors["source/std"])
    own = space.flat if told["flat"] else space
    if cls is WrappedSource:
        return WrappedSource(own, *moments, tensors["source/centre"], told["spread"])
    if isinstance(baseline, UnitBaseline) and cls is UnitSource:
        return unit_source(own, baseline)
    if cls is GivenSource:
        return GivenSource(own, *moments, unpack(tensors, told["content"], "source/given/"))
    return cls(own, *moments)
