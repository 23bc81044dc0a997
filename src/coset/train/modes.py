"""Which modules of a model train and which stay in evaluation mode."""

from collections.abc import Sequence

from torch import nn


def still_modules(model: nn.Module) -> tuple[str, ...]:
    """The names of the modules in evaluation mode inside a model that is itself in training mode.

    A batch normalisation whose statistics are to stay as they are, say. Where the model itself is in evaluation mode,
    as every model is that was just evaluated, that tells nothing about its parts, and none is named.
    """
    if not model.training:
        return ()
    return tuple(name for name, module in model.named_modules() if not module.training)


def training_mode(model: nn.Module, still: Sequence[str]) -> nn.Module:
    """Put ``model`` in training mode, but the modules named in ``still`` in evaluation mode; returns it."""
    model.train()
    for name in still:
        model.get_submodule(name).training = False
    return model
