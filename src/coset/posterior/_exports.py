"""Draws for other tools: a data tree for ArviZ, a data frame for pandas."""

import importlib
from typing import Any

from coset.distribution.contract import require
from coset.distribution.samples import Samples
from coset.errors import InputError
from coset.posterior._plots import scalars
from coset.posterior.fit import Fit


def to_arviz(samples: Samples | Fit[Samples]) -> Any:
    """An ``xarray.DataTree`` as ArviZ takes it: group ``posterior``, a variable (chain, draw, …) for each tensor."""
    xarray = _package("xarray", "arviz")
    found = _draws(samples)
    variables = {}
    for name in found.random_names:
        tensor = found.params[name].detach().cpu()
        axes = [f"{name}_dim_{number}" for number in range(tensor.ndim - 2)]
        variables[name] = (["chain", "draw", *axes], tensor.numpy())
    coordinates = {"chain": range(found.chains), "draw": range(found.draws)}
    data = xarray.Dataset(variables, coords=coordinates)
    if isinstance(samples, Fit):
        data.attrs |= {"inference_library": "coset", "method": samples.method, "sampling_time": samples.seconds}
    return xarray.DataTree.from_dict({"posterior": data})


def to_frame(samples: Samples | Fit[Samples]) -> Any:
    """A ``pandas.DataFrame``: a row for each (chain, draw), a column for each weight, ``layers.0.weight[2, 0]``."""
    pandas = _package("pandas", "zoo")
    found = _draws(samples)
    index = pandas.MultiIndex.from_product([range(found.chains), range(found.draws)], names=["chain", "draw"])
    return pandas.DataFrame({name: values.cpu().flatten().numpy() for name, values in scalars(found).items()}, index)


def _draws(samples: Samples | Fit[Samples]) -> Samples:
    found = samples.posterior if isinstance(samples, Fit) else samples
    require(found, Samples, "samples", "Samples, or a Fit that has found them")
    return found


def _package(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"the package {name} is needed and cannot be imported ({error}); expected: pip install coset[{extra}]"
        ) from error
