"""``canonicalize``: one network of every orbit (thesis, section 4.4)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from coset._checks import check_choice
from coset.alignment import METHODS
from coset.canonical._steps import Form
from coset.canonical._value import Canonical, Params, T, with_networks
from coset.distribution import Distribution
from coset.distribution.contract import networks_of, unwrapped
from coset.errors import InputError
from coset.geometry.scales import BIASES
from coset.symmetry import Symmetry
from coset.symmetry.stacks import leading


def canonicalize(
    sym: Symmetry,
    params: T,
    reference: "Params | Distribution | Canonical[Any] | None" = None,
    method: str = "weights",
    *,
    bias: str = "outside",
    classifier: bool | str = False,
    **options: Any,
) -> Canonical[T]:
    """The canonical network of an orbit: canonicalize(g·θ) = canonicalize(θ), for scales, signs, translations and, in
    the data-free order, permutations.

    In this order (thesis, section 4.4; aligning before scaling would not be invariant): translations are removed;
    gains of classes that mix are folded and GL(n) is balanced, ordered by singular values; every unit gets incoming
    weights of unit norm (``normalize_scales``), with the ``bias`` "outside" of the norm or "inside"; signs are
    settled by Σ w·|w| > 0 and half-turns by biases between −c/2 and c/2; with ``classifier`` (True, or the name of the
    last layer) the last weights and bias are multiplied by √C/‖W‖, which keeps labels and not probabilities. Then, with
    a ``reference``, permutations, signs and rotations are those of ``align`` to its canonical form, by any ``method``
    with its ``options``; without one units are ordered by sums of their weights, and rotations of streams stay free.

    Units whose incoming weights and biases are all 0 keep their scale and, unless weights that leave them decide, their
    sign; units that are equal stay as they stand.

    ``params``: a point, a stack of networks (a leading axis on every tensor), Samples (every draw has its own form), or
    another distribution, which is moved by the form of its mean over permutations, scales and signs alone.
    """
    check_choice("bias", bias, BIASES)
    check_choice("method", method, METHODS)
    if reference is None and options:
        raise InputError(f"'{next(iter(options))}' is an option of the method {method!r}, and there is no reference")
    if bias == "inside" and any(turn.order for turn in sym.turns.values()):
        raise InputError("bias='inside' is given and units of this symmetry reflect, which changes biases of others")
    if not isinstance(classifier, bool | str):
        raise InputError(f"classifier is {classifier!r}; expected True, False or the name of the last layer")
    if "scales" in options:
        raise InputError("scales is given; a canonical form has scales of its own, whatever the reference has")
    if not isinstance(sym, Symmetry):
        raise InputError(f"sym is a {type(sym).__name__}; expected a Symmetry, as discover gives it")
    form = Form(sym, bias, classifier, method, options)
    params = unwrapped(params)
    networks = networks_of(params)
    if networks is None and params is not None:
        return cast(Canonical[T], form.distribution(cast(Distribution, params), reference))
    target = None if reference is None else form.reference(reference)
    if not isinstance(networks, Mapping):
        raise InputError(f"params is a {type(params).__name__}; expected a dict of parameters or a distribution")
    one = leading(sym, networks) is None
    found = form.point(networks, target) if one else form.stack(networks, target)
    return cast(Canonical[T], replace(found, params=cast(Any, with_networks(params, found.params))))
