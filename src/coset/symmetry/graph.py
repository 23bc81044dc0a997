"""The network as discovery saw it: layers in order, what each reads, and what stands on the axes of its output."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from coset._values import Frozen
from coset.errors import InputError
from coset.symmetry._drawing import dot, svg
from coset.symmetry.layers import Activation, Contraction, Layer, operand_name
from coset.symmetry.structure import UnitClass


@dataclass(frozen=True)
class Graph:
    """Layers in the order in which they are called, and what stands on their outputs.

    ``layers``: modules without modules in them; ``reads`` names layers and "input". ``ends``: the layers whose outputs
    the model returns. ``activations``: name of a module → its output, blocks of modules included; a module that gives
    several tensors, or none that an operation makes, has none. Of one that is called again, ``name#1`` and so on.
    ``contractions``: all of them in the order in which they are computed, with what they read.
    ``nodes``: the classes that stand there. Edges between classes are the parameters, ``sym.parameters``.
    """

    layers: tuple[Layer, ...] = ()
    ends: tuple[str, ...] = ()
    activations: Mapping[str, Activation] = field(default_factory=dict)
    contractions: tuple[Contraction, ...] = ()
    nodes: Mapping[str, UnitClass] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in ("activations", "nodes"):
            object.__setattr__(self, part, Frozen(getattr(self, part)))

    @property
    def tensors(self) -> dict[str, Activation]:
        """Outputs of modules and operands of contractions by their names."""
        operands = {
            operand_name(call, number): item
            for call, contraction in enumerate(self.contractions)
            for number, item in enumerate(contraction.operands)
            if item is not None
        }
        return {**self.activations, **operands}

    def with_tensors(self, tensors: Mapping[str, Activation]) -> "Graph":
        """The same layers and contractions, of which just ``tensors`` are known."""
        contractions = tuple(
            Contraction(
                item.operation,
                tuple(tensors.get(operand_name(call, number)) for number in range(len(item.operands))),
            )
            for call, item in enumerate(self.contractions)
        )
        modules = {name: item for name, item in tensors.items() if not name.startswith("@")}
        return replace(self, activations=modules, contractions=contractions)

    def to_svg(self) -> str:
        """A picture: layers as boxes, classes as colours, heads and groups as nested boxes."""
        return svg(self)

    def to_dot(self) -> str:
        """The same for Graphviz."""
        return dot(self)

    def _repr_html_(self) -> str:
        return svg(self)

    def output_beside(self, parameter: str, kinds: Collection[str]) -> Activation | None:
        """The output of the one layer, of one of these kinds, that a parameter belongs to; None where there is none."""
        owners = [layer for layer in self.layers if parameter in layer.parameters]
        if len(owners) != 1 or owners[0].kind not in kinds:
            return None
        return self.activations.get(owners[0].name)

    def activation(self, name: str) -> Activation:
        """The output of a module, of its last call, or with ``name#0`` and so on of one of several; an InputError if
        nothing is known of it.
        """
        calls = [key for key in self.activations if name in (key, f"{key}#0", key.partition("#")[0])]
        if not calls:
            raise InputError(
                f"nothing is known of the output of layer '{name}': expected a module that gives one tensor, in which "
                f"units have an axis, and which an operation makes"
            )
        return self.activations[calls[-1]]
