"""A model run with given weights, itself unchanged; outputs of its layers recorded or replaced; moments of these."""

from coset.running._layers import check_layers, layer_names, recording, replacing, replacing_all
from coset.running._stacks import GROUP_SIZE, outputs_of_stack, run_together
from coset.running._weights import (
    Network,
    call_with,
    check_model,
    copies_of,
    outputs_with,
    owners,
    suited,
    under_owners,
    whole_weights,
    with_weights,
)

__all__ = [
    "GROUP_SIZE",
    "Network",
    "call_with",
    "check_layers",
    "check_model",
    "copies_of",
    "layer_names",
    "outputs_of_stack",
    "outputs_with",
    "owners",
    "recording",
    "replacing",
    "replacing_all",
    "run_together",
    "suited",
    "under_owners",
    "whole_weights",
    "with_weights",
]
