"""``merge``: one network from several, aligned first, averaged, and renormalised."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, cast

from torch import Tensor, nn

from coset.alignment import averages
from coset.alignment import renormalize as renormalization
from coset.alignment.align import METHODS
from coset.alignment.align import align as align_pair
from coset.alignment.inputs import check_networks
from coset.alignment.many import align_many
from coset.alignment.renormalize_measured import BEFORE_NORM, NOT_HIDDEN
from coset.alignment.renormalize_result import Renormalized
from coset.alignment.result import Callback, T, points
from coset.batches import Inputs
from coset.distribution import Delta, MeanField
from coset.errors import InputError
from coset.symmetry import Element, Symmetry


@dataclass(frozen=True, eq=False)
class Merged(Generic[T]):
    """The average of several networks modulo their symmetries.

    ``network``: of the type of the first one. ``elements``: for each network the element that brings it to the frame in
    which they were averaged; ``histories``: the course of each alignment's objective, where there was one. ``weights``:
    the shares, with sum 1. ``renormalized``: what renormalisation did. ``notes``: what the user should know.
    """

    symmetry: Symmetry
    network: T
    elements: tuple[Element, ...]
    weights: tuple[float, ...]
    histories: tuple[tuple[float, ...], ...] = ()
    renormalized: Renormalized | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def params(self) -> Mapping[str, Tensor]:
        """The merged weights; of a posterior, its means."""
        return points(self.network)

    def __repr__(self) -> str:
        return f"Merged({len(self.elements)} networks, weights {', '.join(f'{share:.4g}' for share in self.weights)})"


@dataclass(frozen=True)
class _Aligned(Generic[T]):
    networks: tuple[T, ...]
    elements: tuple[Element, ...]
    histories: tuple[tuple[float, ...], ...] = ()
    notes: tuple[str, ...] = ()


def merge(
    sym: Symmetry,
    networks: Sequence[T],
    *,
    weights: Sequence[float] | None = None,
    average: str = "mean",
    align: bool = True,
    method: str = "weights",
    renormalize: str = "none",
    model: nn.Module | None = None,
    data: Inputs | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    renormalize_options: Mapping[str, Any] | None = None,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Merged[T]:
    """The average of two or more networks of one architecture, points or posteriors, after alignment.

    Two networks are aligned by ``method`` (see ``align``), the second to the first; three or more by "weights" all
    together (see ``align_many``), by any other method each to the first. ``align=False`` averages them as they are.
    ``average``: "mean" or "spherical", with ``weights`` (by default equal). ``renormalize``: a name in
    ``RENORMALIZATIONS``; all but "none" need the ``model``, and those that measure ``data``, which go to the alignment,
    too, where its method takes them. ``options`` are those of the alignment, ``renormalize_options`` those of the
    renormalisation.
    """
    if isinstance(networks, Mapping) or len(networks) < 2:
        found = "one network" if isinstance(networks, Mapping) else f"{len(networks)} networks"
        raise InputError(f"networks holds {found}; expected two or more to merge")
    shares = averages.normalized_weights(weights, len(networks))
    if average not in averages.AVERAGES:
        raise InputError(f"average is {average!r}; expected one of {', '.join(averages.AVERAGES)}")
    known = renormalization.options_of(renormalize)
    extra: dict[str, Any] = {name: value for name, value in (("data", data), ("show", show)) if name in known}
    extra.update(renormalize_options or {})
    # Before the alignment takes its time.
    renormalization.checked_method(renormalize, model, extra)
    check_networks(sym, networks)
    if align:
        given = {**_accepted(method, {"model": model, "data": data}), **(options or {})}
        aligned = _aligned(sym, networks, method, given, seed=seed, callback=callback, show=show)
    else:
        aligned = _Aligned(tuple(networks), tuple(sym.identity() for _ in networks))
    buffers = [name for name, parameter in sym.parameters.items() if parameter.buffer]
    network = averages.average(aligned.networks, shares, kind=average, buffers=buffers)
    done = renormalization.renormalize(
        sym, model, network, aligned.networks, method=renormalize, weights=shares, **extra
    )
    notes = (*aligned.notes, *_notes(done))
    return Merged(sym, _renewed(network, done), aligned.elements, tuple(shares), aligned.histories, done, notes)


def _notes(done: Renormalized) -> list[str]:
    """What renormalisation could not do; what it need not do is no news."""
    return [
        f"'{name}' was not renormalised: {why}"
        for name, why in done.skipped.items()
        if why not in (BEFORE_NORM, NOT_HIDDEN)
    ]


def _accepted(method: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are given and that a method of alignment takes."""
    known = inspect.signature(METHODS[method]).parameters if method in METHODS else {}
    return {name: value for name, value in values.items() if name in known and value is not None}


def _aligned(
    sym: Symmetry, networks: Sequence[T], method: str, options: Mapping[str, Any], *, seed: int, **told: Any
) -> _Aligned[T]:
    """Every network in one frame, that of the first."""
    if len(networks) > 2 and method == "weights":
        known = inspect.signature(align_many).parameters
        if unknown := sorted(set(options) - set(known)):
            raise InputError(
                f"three networks or more are aligned together, which has no option '{unknown[0]}'; expected one of "
                f"{', '.join(name for name in known if name not in ('sym', 'networks'))}"
            )
        found = align_many(sym, networks, **{"seed": seed, **told, **options})
        return _Aligned(found.aligned, found.elements, (found.history,))
    first = networks[0]
    alignments = [align_pair(sym, first, other, method, **{"seed": seed, **told, **options}) for other in networks[1:]]
    return _Aligned(
        (first, *(found.aligned for found in alignments)),
        (sym.identity(), *(found.element for found in alignments)),
        tuple(found.history for found in alignments),
        tuple(note for found in alignments for note in found.notes),
    )


def _renewed(network: T, done: Renormalized) -> T:
    """The network with renormalised weights; deviations change by the same factors."""
    result: Any = dict(done.params)
    if isinstance(network, Delta):
        result = Delta(result)
    elif isinstance(network, MeanField):
        std = {
            name: (tensor.double() * done.factors[name].abs().to(tensor.device)).to(tensor.dtype)
            if name in done.factors
            else tensor
            for name, tensor in network.std.items()
        }
        result = MeanField(result, std)
    return cast(T, result)
