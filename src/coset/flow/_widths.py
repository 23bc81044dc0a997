"""Flows for networks of other widths than those they were trained on."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from coset.errors import InputError
from coset.flow._fields import FlowField
from coset.flow._flow import Flow
from coset.flow._frame import Frame, frame_of
from coset.flow._sources import GivenSource, Source, WrappedSource
from coset.flow._space import Space
from coset.flow._unit_baseline import UnitBaseline, UnitSource, unit_source
from coset.flow._unit_field import UnitTransformer
from coset.flow._units import units_of
from coset.symmetry import Symmetry


def for_architecture(flow: Flow, sym: Symmetry, like: Mapping[str, Tensor]) -> Flow:
    """A flow with the field "units" for networks of the symmetry ``sym`` that have other numbers of units.

    Units of a class are exchangeable, so that all of the flow is a function of features of units: moments of source and
    baseline are those of a unit, the same for more of them, and the field attends to as many as there are. Nothing is
    trained. ``like``: one network of the architecture.
    """
    if not isinstance(flow, Flow):
        raise InputError(f"flow is a {type(flow).__name__}; expected a Flow")
    baseline, network = flow.field.baseline, flow.field.network
    if not isinstance(baseline, UnitBaseline) or not isinstance(network, UnitTransformer):
        raise InputError(
            f"the field of the flow is {flow.spec.name!r}, which has numbers of its own for every entry of a network; "
            f"expected 'units'"
        )
    if flow.frame.order != "given" or flow.moves:
        raise InputError(
            f"the units of the flow stand in an order (order {flow.frame.order!r}), which says nothing of other units; "
            f"expected order 'given', and a flow that was not moved"
        )
    frame: Frame = frame_of(flow.frame, sym, like)
    wide = baseline.widened(units_of(frame.space, sym))
    field = FlowField(network.of(wide), wide, flow.field.clock)
    return replace(flow, frame=frame, field=field.eval(), source=_source(flow.source, baseline, wide, frame.space))


def _source(source: Source, old: UnitBaseline, new: UnitBaseline, space: Space) -> Source:
    if isinstance(source, UnitSource):
        return unit_source(space.flat, new)
    if isinstance(source, GivenSource | WrappedSource):
        raise InputError(
            f"the source of the flow is a {type(source).__name__}, of networks as they were; expected 'units', "
            f"'gaussian', 'kaiming' or 'uniform'"
        )
    own = space if source.space.curved else space.flat
    return type(source)(own, *(old.units.carried(part, new.units) for part in (source.mean, source.std)))
