"""``merge``: one network from several, aligned first, averaged, and renormalised."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from torch import Tensor, nn

from coset._batches import Inputs
from coset._checks import check_choice, keyword_options
from coset.alignment import averages
from coset.alignment._align import METHODS
from coset.alignment._align import align as align_pair
from coset.alignment._many import align_many
from coset.alignment._result import Alignment, Callback, T, deviations, points
from coset.alignment.inputs import check_networks, check_on
from coset.alignment.merging import _renormalize as renormalization
from coset.alignment.merging.measured import BEFORE_NORM, NOT_HIDDEN
from coset.alignment.merging.renormalized import Renormalized
from coset.alignment.task_vectors import KINDS, TaskVectors
from coset.data import given
from coset.distribution.contract import unwrapped
from coset.errors import InputError
from coset.symmetry import Element, Symmetry
from coset.symmetry.preserving import check_model_of


@dataclass(frozen=True, eq=False)
class Merged(Generic[T]):
    """The average of several networks modulo their symmetries.

    ``network``: of the type of the first one. ``elements``: for each network the element that brings it to the frame in
    which they were averaged; ``histories``: the course of each alignment's objective, where there was one. ``weights``:
    the shares, with sum 1. ``renormalized``: what renormalisation did. ``notes``: what the user should know.
    ``stopped``: the callback ended the alignment.
    """

    symmetry: Symmetry
    network: T
    elements: tuple[Element, ...]
    weights: tuple[float, ...]
    histories: tuple[tuple[float, ...], ...] = ()
    renormalized: Renormalized | None = None
    notes: tuple[str, ...] = field(default=())
    stopped: bool = False

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
    stopped: bool = False


def merge(
    sym: Symmetry,
    networks: Sequence[T],
    *,
    weights: Sequence[float] | None = None,
    average: str = "mean",
    base: T | None = None,
    average_options: Mapping[str, Any] | None = None,
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
    ``average``: "mean" or "spherical", with ``weights`` (by default equal); or, of what the networks learned beyond the
    ``base`` from which they began, "task-arithmetic", "ties", "dare" or "dare-ties", with the ``average_options`` of
    ``TaskVectors``: the base is aligned, too, as the last network. ``renormalize``: a name in
    ``RENORMALIZATIONS``; all but "none" need the ``model``, and those that measure ``data``, which go to the alignment,
    too, where its method takes them. ``options`` are those of the alignment, ``renormalize_options`` those of the
    renormalisation; both get the ``seed``. ``callback``: called after every step of the alignment; returning True stops
    it, and networks whose turn has not come stay as they are.
    """
    if isinstance(networks, Mapping) or len(networks) < 2:
        found = "one network" if isinstance(networks, Mapping) else f"{len(networks)} networks"
        raise InputError(f"networks holds {found}; expected two or more to merge")
    networks = [unwrapped(network) for network in networks]
    shares = averages.normalized_weights(weights, len(networks))
    check_choice("average", average, [*averages.AVERAGES, *KINDS])
    task = TaskVectors(**{"seed": seed, **(average_options or {})}) if average in KINDS or average_options else None
    averages.check_kind(average, base is not None, task)
    check_choice("renormalize", renormalize, renormalization.RENORMALIZATIONS)
    known = renormalization.options_of(renormalize)
    data = None if data is None else given(data, model)
    shared = {"data": data, "seed": seed, "show": show}
    extra: dict[str, Any] = {name: value for name, value in shared.items() if name in known}
    extra.update(renormalize_options or {})
    # Before the alignment takes its time.
    renormalization.checked_method(renormalize, model, extra)
    if model is not None and renormalize != "none":
        check_model_of(sym, model)
    if model is not None:
        check_on(sym, model, data)
    taken = _alignment_options(align, method, len(networks) + (base is not None), options or {})
    if data is not None and "data" not in known and "data" not in taken:
        raise InputError(
            f"data is given, but neither the alignment nor renormalize={renormalize!r} reads any; expected None"
        )
    every = list(networks) if base is None else [*networks, base]
    check_networks(sym, every)
    if align:
        offered = {"model": model, "data": data}
        chosen = {name: value for name, value in offered.items() if name in taken and value is not None}
        chosen.update(options or {})
        aligned = _aligned(sym, every, method, chosen, seed=seed, callback=callback, show=show)
    else:
        aligned = _Aligned(tuple(every), tuple(sym.identity() for _ in every))
    mine, start = aligned.networks[: len(networks)], None if base is None else aligned.networks[-1]
    buffers = [name for name, parameter in sym.parameters.items() if parameter.buffer]
    network = averages.average(mine, shares, kind=average, buffers=buffers, base=start, task=task)
    done = renormalization.renormalize(sym, model, network, mine, method=renormalize, weights=shares, **extra)
    return Merged(
        sym,
        _renewed(network, done),
        aligned.elements,
        tuple(shares),
        aligned.histories,
        done,
        (*aligned.notes, *_notes(renormalize, done)),
        aligned.stopped,
    )


def _notes(method: str, done: Renormalized) -> list[str]:
    """What renormalisation could not do; what it need not do is no news."""
    notes = [
        f"'{name}' was not renormalised: {why}"
        for name, why in done.skipped.items()
        if why not in (BEFORE_NORM, NOT_HIDDEN)
    ]
    if method != "none" and not (done.corrected or done.rescaled or done.refreshed):
        missing = "no batch norm" if method == "refresh" else "no layer that it could correct, and no batch norm"
        notes.append(f"renormalize={method!r} changed nothing: the network has {missing}")
    return notes


def _alignment_options(align: bool, method: str, count: int, options: Mapping[str, Any]) -> Collection[str]:
    """The names of the options that the alignment takes; raises unless it knows those that are given."""
    check_choice("method", method, METHODS)
    if not align:
        if options:
            raise InputError(f"options has '{min(options)}', but with align=False there is no alignment to take it")
        return ()
    together = count > 2 and method == "weights"
    known = keyword_options(align_many if together else METHODS[method])
    if unknown := sorted(options.keys() - known.keys()):
        who = "three networks or more are aligned together, which" if together else f"the method {method!r}"
        raise InputError(f"{who} has no option '{unknown[0]}'; expected one of {', '.join(known)}")
    return known


def _aligned(
    sym: Symmetry, networks: Sequence[T], method: str, options: Mapping[str, Any], *, seed: int, **told: Any
) -> _Aligned[T]:
    """Every network in one frame, that of the first."""
    if len(networks) > 2 and method == "weights":
        joint = align_many(sym, networks, **{"seed": seed, **told, **options})
        return _Aligned(joint.aligned, joint.elements, (joint.history,), joint.notes, joint.stopped)
    first, *others = networks
    if options.get("both") and len(others) > 1:
        raise InputError(f"options has both=True and there are {len(networks)} networks to merge; expected two")
    alignments: list[Alignment[T]] = []
    for other in others:
        alignments.append(align_pair(sym, first, other, method, **{"seed": seed, **told, **options}))
        if alignments[-1].stopped:
            break
    left = others[len(alignments) :]
    moved = alignments[0].reference_element
    first, _ = alignments[0].ends(first)
    notes = [note for found in alignments for note in found.notes]
    notes += [
        f"network {len(networks) - len(left) + at} was not aligned: the callback stopped" for at in range(len(left))
    ]
    return _Aligned(
        (first, *(found.aligned for found in alignments), *left),
        (moved or sym.identity(), *(found.element for found in alignments), *(sym.identity() for _ in left)),
        tuple(found.history for found in alignments),
        tuple(notes),
        any(found.stopped for found in alignments),
    )


def _renewed(network: T, done: Renormalized) -> T:
    """The network with renormalised weights; deviations change by the same factors."""
    std = {
        name: (tensor.double() * done.factors[name].abs().to(tensor.device)).to(tensor.dtype)
        if name in done.factors
        else tensor
        for name, tensor in deviations(network).items()
    }
    return averages.like(network, done.params, std)
