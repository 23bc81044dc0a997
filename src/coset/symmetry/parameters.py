"""What is known of a parameter, and of a family of free scales and signs."""

from dataclasses import dataclass, field

from coset.symmetry.axes import Node, family_key, units_of


@dataclass(frozen=True)
class Family:
    """A vector of free scales and/or signs over the units of a class.

    A class may have several: a convolution's output before its batch norm and behind it scale independently.
    """

    owner: str
    name: str = ""
    scales: bool = False
    signs: bool = False

    @property
    def key(self) -> str:
        """The name under which elements keep it: the class's own name, or class:family."""
        return family_key(self.owner, self.name)


@dataclass(frozen=True)
class Parameter:
    """A parameter or moving buffer: its shape and, axis by axis, what stands there.

    ``shift``: the value that is multiplied is x + shift (a running variance moves as var + ε).
    ``gain``: the parameter that takes up the difference where the shifted value would leave its domain.
    ``why``: for each axis, in words, why it is what it is; known of symmetries that were discovered.
    ``buffer``: whether it is a buffer, not trained (False where the symmetry was declared from a plain state dict).
    ``tied``: the first name under which the same tensor stands, if that is another one.
    """

    shape: tuple[int, ...]
    axes: tuple[Node, ...]
    shift: float = 0.0
    gain: str | None = None
    why: tuple[str, ...] = field(default=(), compare=False)
    buffer: bool = field(default=False, compare=False)
    tied: str | None = field(default=None, compare=False)

    @property
    def moves(self) -> bool:
        """Whether any axis carries a class."""
        return any(True for node in self.axes for _ in units_of(node))
