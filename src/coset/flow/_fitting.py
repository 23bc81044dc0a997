"""``fit_flow``: a flow over the weights of networks, from a zoo or from draws of any sampler."""

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

import torch
from torch import Tensor, nn

from coset._checks import check_choice, check_positive, check_seed, is_number
from coset.distribution import Distribution, Samples
from coset.errors import InputError
from coset.flow._baseline import PROJECTIONS, Baseline, entry_flips, entry_orbits, make_baseline
from coset.flow._fields import FIELDS, UNITS, FieldSpec, make_field
from coset.flow._flow import Flow
from coset.flow._frame import Frame, make_frame
from coset.flow._paths import Path
from coset.flow._solvers import Solver
from coset.flow._sources import SOURCES, Source, make_source
from coset.flow._space import Space
from coset.flow._training import FlowRecipe, train_field
from coset.flow._unit_baseline import make_unit_baseline, unit_source
from coset.flow._units import units_metric, units_of
from coset.posterior.fit import Callback, Fit
from coset.symmetry import Symmetry
from coset.train.randomness import stream, stream_seed
from coset.zoo import Zoo


def fit_flow(
    networks: "Zoo | Samples | Mapping[str, Tensor]",
    recipe: FlowRecipe = FlowRecipe(),  # noqa: B008
    *,
    sym: Symmetry | None = None,
    space: Space | None = None,
    geometry: str = "euclidean",
    order: str | None = None,
    classifier: bool | str = False,
    reference: Mapping[str, Tensor] | None = None,
    source: str | Distribution | None = None,
    source_std: float = 1.0,
    field: str | nn.Module = "mlp",
    field_options: Mapping[str, Any] | None = None,
    projection: str = "none",
    components: int | None = None,
    metric: Mapping[str, Tensor] | None = None,
    baseline: bool = True,
    conditions: Tensor | None = None,
    validation: float | None = None,
    solver: Solver = Solver(),  # noqa: B008
    seed: int = 0,
    checkpoint: FilePath | str | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> Fit[Flow]:
    """A flow from a ``source`` to the distribution that ``networks`` were drawn from, by conditional flow matching.

    ``networks``: a zoo, draws, or a stack with a leading axis, with the symmetry ``sym`` of the model (a zoo knows its
    own); or, with none, points on a ``space``. ``geometry``: "euclidean", weights as they are; "normalized", canonical
    weights on straight lines, projected at the end; "geometric", canonical weights on geodesics of their spheres.
    ``order``: units "given" as they stand, in the "canonical" order, or "aligned" to a ``reference`` (the default, to
    the first network that is learned). ``classifier``: as in ``canonicalize``, logits of canonical weights have one
    size.

    ``source``: "gaussian" (deviations of each parameter those of the networks about 0), "kaiming", "uniform" or
    "wrapped-normal" on spheres, "units" (with the field "units": independent units with the covariance of those of the
    networks), or a distribution; ``source_std`` multiplies deviations (of "wrapped-normal" it is the deviation).
    ``field``: "mlp" on all numbers, or with a ``projection`` "pca" or "random" on so many ``components``; "units", a
    transformer whose tokens are units, with "pca" on so many principal components of units; "relational" or "pna",
    which move with permutations of units, too; or a module called as ``module(numbers (N, k), clock (N, 64))``, which
    gives (N, k). It is added to a ``baseline``, the exact field from the source to a Gaussian with the moments of the
    networks; without, to the field from the source to itself, so that the module learns means and deviations, too.
    ``metric`` (with field and source "units", and "pca"): for weights, of which a unit has n, the second moments E[xxᵀ]
    (n, n) of what these multiply: components are those of how units answer to inputs, errors of the field are weighed
    by it, and what lies in no component has the covariance of the networks. ``conditions``: a label (N,) or numbers
    (N, C) for every network. ``validation``: this share of the networks is held out, and the trace has their loss.
    """
    check_seed(seed)
    check_choice("projection", projection, PROJECTIONS)
    if not baseline and field == UNITS:
        raise InputError(f"field is {UNITS!r}, which learns what its baseline leaves; expected baseline=True")
    if not baseline and projection != "none":
        raise InputError(
            f"projection is {projection!r}, which leaves all other directions to the baseline; expected 'none' without"
        )
    if not isinstance(recipe, FlowRecipe):
        raise InputError(f"recipe is a {type(recipe).__name__}; expected a FlowRecipe")
    sym, stack = _networks(networks, sym)
    if sym is None and (order is not None or classifier or reference is not None):
        raise InputError(
            "order, classifier or a reference is given, and there is no symmetry; expected sym= of the model"
        )
    order = order or ("given" if sym is None else "aligned")
    known = _conditions(conditions, len(next(iter(stack.values()), ())))
    kept, left = _parts(len(next(iter(stack.values()), ())), validation, seed)
    seen = stack if left is None else {name: tensor[kept] for name, tensor in stack.items()}
    frame, learned = make_frame(
        sym, seen, geometry=geometry, order=order, classifier=classifier, reference=reference, space=space
    )
    held_out = None if left is None else frame.rows({name: tensor[left] for name, tensor in stack.items()})
    if known is not None:
        known = (known.to(learned) if known.is_floating_point() else known).to(learned.device)
    unseen = None if known is None or left is None else known[left.to(known.device)]
    known = known if known is None or left is None else known[kept.to(known.device)]
    if recipe.coupling == "orbit" and sym is None:
        raise InputError("coupling is 'orbit', and there is no symmetry; expected 'independent' or 'optimal-transport'")
    begin, gaussians = _beginning(
        frame, field, learned, _source_name(source, geometry), source_std, recipe, projection, components, metric, seed
    )
    if not baseline:
        gaussians = gaussians.of_the_source()
    if not isinstance(field, nn.Module):
        check_choice("field", field, FIELDS, otherwise=", or a torch.nn.Module")
    options = dict(field_options or {})
    if isinstance(field, nn.Module) and options:
        raise InputError(
            "field_options are given, and field is a module of your own; expected options it was made with"
        )
    spec = FieldSpec(
        "own" if isinstance(field, nn.Module) else field,
        options,
        0 if known is None or known.is_floating_point() else int(known.max()) + 1,
        known.shape[1] if known is not None and known.is_floating_point() else 0,
    )
    made = make_field(
        spec,
        frame.space,
        sym,
        gaussians,
        stream_seed("field", seed, 0),
        field if isinstance(field, nn.Module) else None,
    )
    if known is not None:
        made.clock.learn(known)
    trained, trace, seconds = train_field(
        made,
        learned,
        Path(frame.path_space, recipe.sigma),
        begin,
        sym,
        recipe,
        conditions=known,
        held_out=held_out,
        held_out_conditions=unseen,
        seed=seed,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        callback=callback,
        show=show,
        told={"geometry": geometry, "order": order},
    )
    return Fit(Flow(frame, begin.to(learned), trained, recipe, spec, solver), trace, "flow", seconds)


def _networks(networks: Any, sym: Symmetry | None) -> tuple[Symmetry | None, dict[str, Tensor]]:
    if isinstance(networks, Zoo):
        own = networks.symmetry()
        if sym is not None and sym.fingerprint != own.fingerprint:
            raise InputError("sym is the symmetry of another model than the zoo's; expected that of the zoo, or None")
        return own if sym is None else sym, networks.stack()
    if isinstance(networks, Samples):
        return sym, networks.flat
    if not isinstance(networks, Mapping):
        raise InputError(f"networks is a {type(networks).__name__}; expected a Zoo, Samples, or a stack of parameters")
    return sym, dict(networks)


def _beginning(
    frame: Frame,
    field: str | nn.Module,
    rows: Tensor,
    name: str | Distribution,
    std: float,
    recipe: FlowRecipe,
    projection: str,
    components: int | None,
    metric: Mapping[str, Tensor] | None,
    seed: int,
) -> tuple[Source, Baseline]:
    """The source, and the baseline that fits it and a field: of units, of orbits of entries, or of entries."""
    sym, space = frame.symmetry, frame.space if frame.geometry != "euclidean" else frame.space.flat
    matched = isinstance(name, str) and name == UNITS
    if frame.geometry == "geometric" and name in ("gaussian", "kaiming"):
        raise InputError(
            f"source is {name!r}, a Gaussian, and this flow runs on spheres; expected 'uniform' or 'wrapped-normal'"
        )
    if isinstance(name, Distribution) and frame.offsets:
        raise InputError(
            "source is a distribution of weights, and variances of batch norms are learned as logarithms; expected "
            "'gaussian' or 'kaiming'"
        )
    if recipe.sigma and field == UNITS:
        raise InputError(f"sigma is {recipe.sigma}, and the field 'units' knows no noise along paths; expected 0")
    if metric is not None and (field != UNITS or not matched or projection != "pca"):
        raise InputError(
            f"metric is given, and field is {field if isinstance(field, str) else 'a module'!r}, source {name!r}, "
            f"projection {projection!r}; expected 'units', 'units' and 'pca'"
        )
    if field == UNITS:
        if sym is None:
            raise InputError(f"field is {UNITS!r}, which reads networks, and there is no symmetry; expected 'mlp'")
        if matched and space.curved and frame.geometry == "geometric":
            raise InputError(f"source is {UNITS!r}, a Gaussian, and this flow runs on spheres; expected 'uniform'")
        begin = make_source(
            "gaussian" if matched else name, space.flat if matched else space, rows, 1.0 if matched else std
        )
        units = units_of(frame.space, sym)
        made = make_unit_baseline(
            units,
            rows,
            begin.mean,
            begin.std,
            projection=projection,
            components=components,
            matched=check_positive("source_std", std) if matched else 0.0,
            metric=None if metric is None else units_metric(frame.space, sym, units, metric),
        )
        return unit_source(space.flat, made) if matched else begin, made
    if matched:
        raise InputError(f"source is {UNITS!r}, which is for the field {UNITS!r}; expected one of {', '.join(SOURCES)}")
    begin = make_source(name, space, rows, std)
    # Readers see no order of units, and pairs of one orbit have none.
    moves = recipe.coupling == "orbit" or (not isinstance(field, nn.Module) and field != "mlp")
    if recipe.coupling == "orbit" and projection != "none":
        raise InputError(
            f"projection is {projection!r}, and coupling 'orbit' moves networks out of what it spans; expected 'none'"
        )
    flips = recipe.coupling == "orbit" and sym is not None and bool(sym.flipping)
    baseline = make_baseline(
        rows,
        begin.mean,
        begin.std,
        orbits=entry_orbits(frame.space, sym) if moves and sym is not None else None,
        projection=projection,
        components=components,
        generator=stream("projection", seed, 0),
        sigma=recipe.sigma,
        flips=entry_flips(frame.space, sym) if flips and sym is not None else None,
    )
    return begin, baseline


def _source_name(source: "str | Distribution | None", geometry: str) -> "str | Distribution":
    if source is None:
        return "gaussian" if geometry == "euclidean" else "uniform"
    return source


def _conditions(conditions: Any, count: int) -> Tensor | None:
    if conditions is None:
        return None
    given = torch.as_tensor(conditions)
    if len(given) != count:
        raise InputError(f"there are {len(given)} conditions and {count} networks; expected one for each")
    if given.is_floating_point():
        if not bool(torch.isfinite(given).all()):
            raise InputError("conditions hold numbers that are NaN or infinite; expected finite ones")
        return given[:, None] if given.ndim == 1 else given
    if given.ndim != 1 or bool((given < 0).any()):
        raise InputError("conditions are whole numbers; expected labels from 0, (N,), or numbers with a point")
    return given.long()


def _parts(count: int, validation: float | None, seed: int) -> tuple[Tensor, Tensor | None]:
    """The numbers of the networks to learn, and of those that are held out."""
    if validation is None:
        return torch.arange(count), None
    if not is_number(validation) or not 0 < validation < 1:
        raise InputError(f"validation is {validation!r}; expected a share between 0 and 1, or None")
    order = torch.randperm(count, generator=stream("validation of a flow", seed, 0))
    held = max(1, round(validation * count))
    if held >= count:
        raise InputError(f"there are {count} networks, too few to hold some of them out")
    return order[held:], order[:held]
