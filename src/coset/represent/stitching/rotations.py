"""Rotation penalties: what a fixed linear map behind a layer costs, when only what is above may adapt to it.

In front of an activation σ a random element A of its group can be undone by the weights above, for σ(Ax) = φ(A)σ(x), so
it should cost nothing; a random rotation cannot, and is a test of whether the basis of units matters (Godfrey et al.
2022, section 3.3 and fig. 4; D.1 for the training). Behind the activation weights undo any invertible map.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coset.errors import InputError
from coset.represent._anatomy import part_below
from coset.represent._channel_maps import find_axis, on_channels
from coset.represent._cut import layer_outputs, suited_to
from coset.represent.stitching._stitch import check_labelled
from coset.represent.stitching.penalties import DRAWS, Penalty, correct, penalty_between
from coset.represent.unit_groups import Group, group_on, random_element
from coset.running import check_layers, replacing
from coset.train import Recipe, fit
from coset.train.modes import training_mode

# So many examples tell what is below a layer.
_PROBED = 2


class Inserted(nn.Module):
    """A network with a fixed map behind one of its layers: ``matrix`` (C, C), on the channels of its output."""

    matrix: Tensor

    def __init__(self, model: nn.Module, layer: str, matrix: Tensor, channel_axis: int | None = None) -> None:
        super().__init__()
        check_layers(model, [layer])
        self.model, self.layer, self.channel_axis = model, layer, channel_axis
        self.register_buffer("matrix", matrix)

    def forward(self, x: Tensor) -> Tensor:
        with replacing(self.model, self.layer, lambda out: on_channels(self.matrix, out, axis=self.channel_axis)):
            outputs: Tensor = self.model(x)
        return outputs


@dataclass(frozen=True)
class Rotation:
    """One inserted map: its penalty, the map (C, C), and the network that was fine-tuned behind it.

    ``penalty.before`` is the accuracy of the network fine-tuned in the same way without a map.
    """

    penalty: Penalty
    matrix: Tensor
    network: nn.Module


def rotation_penalties(
    model: nn.Module,
    layer: str,
    data: tuple[Tensor, Tensor],
    held_out: tuple[Tensor, Tensor],
    recipe: Recipe,
    *,
    groups: Sequence[str] | Mapping[str, Group | Tensor] = ("permutation", "orthogonal"),
    spread: float = 1.0,
    channel_axis: int | None = None,
    level: float = 0.95,
    draws: int = DRAWS,
    seed: int = 0,
    show: bool | None = None,
) -> dict[str, Rotation]:
    """For each of ``groups`` a random element inserted behind ``layer``, all above fine-tuned, all below frozen.

    ``groups``: names as in ``coset.represent.unit_groups.GROUPS`` ("permutation" has positive scales: G_ReLU), or by
    any name such a group, the one found at the layer for instance, or a matrix (C, C). ``spread``: the deviation of the
    logarithms of scales. Fine-tuning follows ``recipe`` on ``data`` (inputs, labels), with and without the map from the
    same seed; accuracies are those on ``held_out``, which neither sees. The model stays as it is.
    """
    check_labelled(data, "data")
    check_layers(model, [layer])
    features = layer_outputs(model, [layer], data[0][:_PROBED])[layer]
    channels = features.shape[find_axis(features, channel_axis)]
    named = groups if isinstance(groups, Mapping) else {name: name for name in groups}
    maps = {name: _element(group, channels, layer, spread, seed) for name, group in named.items()}
    plain = fine_tuned_above(model, layer, data, recipe, seed=seed, show=show)
    before = correct(plain, held_out)
    found: dict[str, Rotation] = {}
    for name, matrix in maps.items():
        network = fine_tuned_above(
            model, layer, data, recipe, matrix=matrix.to(features), channel_axis=channel_axis, seed=seed, show=show
        )
        penalty = penalty_between(before, correct(network, held_out), level, draws, seed)
        found[name] = Rotation(penalty, matrix, network)
    return found


def fine_tuned_above(
    model: nn.Module,
    layer: str,
    data: tuple[Tensor, Tensor],
    recipe: Recipe,
    *,
    matrix: Tensor | None = None,
    channel_axis: int | None = None,
    seed: int = 0,
    show: bool | None = None,
) -> nn.Module:
    """A copy of ``model``, with ``matrix`` (C, C) behind ``layer`` if given, trained above the layer and frozen below.

    Frozen are all parameters that have been read when the layer has spoken, and the statistics of batch normalisation
    that has run by then.
    """
    inner = copy.deepcopy(model)
    probe = suited_to(inner, data[0][:_PROBED].detach().clone())
    below = part_below(inner, layer, probe)
    for name, parameter in inner.named_parameters():
        if name in below.parameters:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in inner.parameters()):
        raise InputError(f"no parameter to train is above layer '{layer}'; expected a layer further down")
    training_mode(inner, below.modules)
    network = inner if matrix is None else Inserted(inner, layer, matrix, channel_axis)
    network.load_state_dict(fit(network, *data, recipe, seed=seed, show=show).params)
    return network.eval()


def _element(group: Group | Tensor, channels: int, layer: str, spread: float, seed: int) -> Tensor:
    if isinstance(group, Tensor):
        if group.shape != (channels, channels):
            raise InputError(
                f"the map for layer '{layer}' has shape {tuple(group.shape)}; expected ({channels}, {channels})"
            )
        return group
    generator = torch.Generator().manual_seed(seed)
    return random_element(group_on(group, channels, f"layer '{layer}'"), generator, spread=spread)
