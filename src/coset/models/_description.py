"""What a model consists of, as a table that a person can read."""

from dataclasses import dataclass

from torch import nn

from coset._show.tables import text_table


@dataclass(frozen=True)
class LayerDescription:
    """One module that holds weights: its name and class, the shapes of its own tensors, how many numbers they hold."""

    name: str
    kind: str
    shapes: dict[str, tuple[int, ...]]
    parameters: int
    buffers: int


@dataclass(frozen=True)
class Description:
    """The layers of a model in order, and its totals; a tensor that several layers share is counted once."""

    kind: str
    layers: tuple[LayerDescription, ...]
    parameters: int
    trainable: int
    buffers: int

    def __str__(self) -> str:
        rows = [*(_cells(layer) for layer in self.layers), ("", self.kind, "", f"{self.parameters:,}")]
        return text_table(("layer", "kind", "shapes", "parameters"), rows, right={3})


def describe(model: nn.Module) -> Description:
    """Return the table of every module of ``model`` that holds parameters or buffers itself."""
    shapes: dict[str, dict[str, tuple[int, ...]]] = {}
    counts: dict[str, list[int]] = {}
    for position, tensors in enumerate((model.named_parameters(), model.named_buffers())):
        for full_name, tensor in tensors:
            layer, _, name = full_name.rpartition(".")
            shapes.setdefault(layer, {})[name] = tuple(tensor.shape)
            counts.setdefault(layer, [0, 0])[position] += tensor.numel()
    layers = tuple(
        LayerDescription(name, type(module).__name__, shapes[name], *counts[name])
        for name, module in model.named_modules()
        if name in shapes
    )
    return Description(
        kind=type(model).__name__,
        layers=layers,
        parameters=sum(layer.parameters for layer in layers),
        trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
        buffers=sum(layer.buffers for layer in layers),
    )


def _cells(layer: LayerDescription) -> tuple[str, str, str, str]:
    shapes = ", ".join(f"{name} {'×'.join(map(str, shape)) or '()'}" for name, shape in layer.shapes.items())
    return layer.name or "(model)", layer.kind, shapes, f"{layer.parameters:,}"
