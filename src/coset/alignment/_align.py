"""``align``: the element of the group that brings one network to another, by the method of choice."""

from collections.abc import Callable
from typing import Any

import torch

from coset._checks import check_choice, check_seed, keyword_options
from coset.alignment._result import Alignment, T
from coset.alignment.inputs import check_on, check_pair
from coset.alignment.matching.activations import match_activations
from coset.alignment.matching.sinkhorn import match_sinkhorn
from coset.alignment.matching.straight_through import match_straight_through
from coset.alignment.matching.weights import match_weights
from coset.callbacks import check_callback
from coset.data import given
from coset.distribution.contract import unwrapped
from coset.errors import InputError
from coset.symmetry import Symmetry
from coset.train.randomness import own_global_state, seed_global_state

METHODS: dict[str, Callable[..., Alignment[Any]]] = {
    "weights": match_weights,
    "activations": match_activations,
    "sinkhorn": match_sinkhorn,
    "ste": match_straight_through,
}


def align(sym: Symmetry, reference: T, other: T, method: str = "weights", **options: Any) -> Alignment[T]:
    """Find g in the group with g·other close to the reference; both are points, or both posteriors.

    ``method``: a name in ``METHODS``; ``options`` are those of the method, see there. All take ``seed``, ``callback``
    (called after every step; True stops) and ``show`` (a progress bar; by default where somebody watches).
    """
    check_choice("method", method, METHODS)
    chosen = METHODS[method]
    known = keyword_options(chosen)
    if unknown := sorted(options.keys() - known.keys()):
        raise InputError(f"the method {method!r} has no option '{unknown[0]}'; it has {', '.join(known)}")
    for name, needed in known.items():
        if needed and options.get(name) is None:
            raise InputError(f"{name} is not given; the method {method!r} needs it")
    seed = options.get("seed", 0)
    check_seed(seed)
    check_callback(options.get("callback"))
    reference, other = unwrapped(reference), unwrapped(other)
    check_pair(sym, reference, other)
    if options.get("data") is not None:
        options["data"] = given(options["data"], options.get("model"))
    if options.get("model") is not None:
        check_on(sym, options["model"], options.get("data"))
    # A loader that shuffles draws from the global state: the same seed must give the same result with it, too.
    with own_global_state(torch.device("cpu")):
        seed_global_state(seed, torch.device("cpu"))
        return chosen(sym, reference, other, **options)
