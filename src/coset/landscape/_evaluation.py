"""Several functionals at one point, in as few forward passes as they need."""

from collections.abc import Mapping
from typing import Any

from coset.landscape._functionals import DataFunctional, Functional, data_means
from coset.landscape._path import params_of
from coset.landscape._posteriors import PosteriorFunctional, read_posterior
from coset.landscape._reading import Reading

AnyFunctional = Functional | DataFunctional | PosteriorFunctional


def evaluate(functionals: Mapping[str, AnyFunctional], point: Any) -> dict[str, float]:
    """The values of several functionals at a point."""
    return {name: reading.value for name, reading in read(functionals, point).items()}


def read(functionals: Mapping[str, AnyFunctional], point: Any) -> dict[str, Reading]:
    """Values and errors; functionals of one model share forward passes on the same data, those of posteriors draws."""
    of_data: dict[tuple[int, ...], dict[str, DataFunctional]] = {}
    of_posteriors: dict[tuple[object, ...], dict[str, PosteriorFunctional]] = {}
    readings = dict.fromkeys(functionals, Reading(0.0))
    for name, functional in functionals.items():
        if isinstance(functional, DataFunctional):
            of_data.setdefault(functional.forward_pass, {})[name] = functional
        elif isinstance(functional, PosteriorFunctional):
            of_posteriors.setdefault(functional.drawing, {})[name] = functional
        else:
            readings[name] = functional.read(point)
    for group in of_data.values():
        means = data_means(group, params_of(point, "the point"))
        readings |= {name: Reading(value, 0.0) for name, value in means.items()}
    for drawn in of_posteriors.values():
        readings |= read_posterior(drawn, point)
    return readings
