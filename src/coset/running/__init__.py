"""A model run with given weights, itself unchanged; outputs of its layers recorded or replaced; moments of these."""

from coset.running._layers import check_layers, layer_names, recording, replacing, replacing_all
from coset.running._weights import (
    Network,
    check_model,
    outputs_with,
    owners,
    suited,
    under_owners,
    whole_weights,
    with_weights,
)

__all__ = [
    "Network",
    "check_layers",
    "check_model",
    "layer_names",
    "outputs_with",
    "owners",
    "recording",
    "replacing",
    "replacing_all",
    "suited",
    "under_owners",
    "whole_weights",
    "with_weights",
]
