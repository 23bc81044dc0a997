"""A small language for axes: ``"h2 /h1"``, ``"heads[qk+qk+vo] stream"``, ``"out /conv*49"``.

    axes    := axis (space axis)*          one axis after the other; axes left out at the end are fixed
    axis    := term ('+' term)*            concatenation of segments
             | term ('|' term)+            segments of one size in turns, position by position
    term    := factor ('*' factor)*        product, row-major
    factor  := '-'                         fixed (a whole axis; on activations as many as there are)
             | INTEGER                     that many fixed positions
             | '(' axis ')'
             | ['/'] NAME ['^' POWER] ['{' NAME ':' POWER (',' NAME ':' POWER)* '}'] ['[' axis ']']
    POWER   := INTEGER ['~' ('0' | '1')]   the scale's power; the sign's is its parity unless given after '~'

A bare NAME carries its class's scale with power 1 (it produces the units), ``/NAME`` with power −1 (it consumes them),
``/NAME^3`` with power −3 (behind x³), ``NAME^0`` not at all. Braces name further families: ``c{pre:2}``.
``outer[inner]`` is the product of ``outer`` with ``inner``, and says that the classes inside have a permutation of
their own in every unit of ``outer`` (a wreath product); there ``outer`` is moved but carries no scale unless it is
written as ``outer^1[…]`` or ``/outer[…]``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from coset.errors import InputError
from coset.symmetry.axes import Charge, Concat, Fixed, Interleaved, Node, Product, Units, units_of

_TOKEN = re.compile(r"(?P<name>[A-Za-z_][\w.]*)|(?P<number>\d+)|(?P<mark>[-+*/^~(){}\[\]:,|])")


def is_name(text: str) -> bool:
    """Whether ``text`` can name a class or a family."""
    match = _TOKEN.fullmatch(text)
    return match is not None and match.lastgroup == "name"


@dataclass
class _Reader:
    text: str
    where: str
    tokens: list[tuple[str, str]] = field(default_factory=list)
    at: int = 0
    outer: list[str] = field(default_factory=list)
    parents: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        position = 0
        while position < len(self.text):
            match = _TOKEN.match(self.text, position)
            if match is None:
                raise self.error(f"unexpected '{self.text[position]}'")
            self.tokens.append((str(match.lastgroup), match.group()))
            position = match.end()

    def error(self, problem: str) -> InputError:
        return InputError(f"{self.where}: cannot read the axis '{self.text}': {problem}")

    def peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None, kind: str | None = None) -> str:
        if self.at >= len(self.tokens):
            raise self.error(f"it ends where {wanted or kind} was expected")
        found_kind, found = self.tokens[self.at]
        if (wanted is not None and found != wanted) or (kind is not None and found_kind != kind):
            raise self.error(f"found '{found}' where {wanted or 'a ' + str(kind)} was expected")
        self.at += 1
        return found

    def accept(self, mark: str) -> bool:
        if self.peek() == mark:
            self.at += 1
            return True
        return False

    def opens_bracket(self) -> bool:
        return self.peek() == "["

    def axis(self) -> Node:
        segments = [self.term()]
        mark = "|" if self.peek() == "|" else "+"
        while self.accept(mark):
            segments.append(self.term())
        if len(segments) == 1:
            return segments[0]
        return Interleaved(tuple(segments)) if mark == "|" else Concat(tuple(segments))

    def term(self) -> Node:
        factors = [self.factor()]
        while self.accept("*"):
            factors.append(self.factor())
        return factors[0] if len(factors) == 1 else Product(tuple(factors))

    def factor(self) -> Node:
        if self.accept("-"):
            return Fixed(0)
        if self.accept("("):
            inner = self.axis()
            self.take(")")
            return inner
        if self.at < len(self.tokens) and self.tokens[self.at][0] == "number":
            size = int(self.take())
            if size == 0:
                raise self.error("a fixed part of size 0")
            return Fixed(size)
        return self.units()

    def units(self) -> Node:
        consumes = self.accept("/")
        name = self.take(kind="name")
        charges: list[Charge] = []
        if self.accept("^"):
            charges.append(self.power("", consumes))
        elif self.peek() != "{" and (consumes or not self.opens_bracket()):
            charges.append(Charge("", -1 if consumes else 1, 1))
        if self.accept("{"):
            while True:
                family = self.take(kind="name")
                self.take(":")
                charges.append(self.power(family, consumes))
                if not self.accept(","):
                    break
            self.take("}")
        families = [charge.family for charge in charges]
        if len(set(families)) < len(families):
            raise self.error(f"a family of '{name}' is charged twice")
        kept = tuple(sorted((c for c in charges if c.scale or c.sign), key=lambda c: c.family))
        node: Node = Units(name, kept)
        self.nest(name)
        if self.accept("["):
            self.outer.append(name)
            inner = self.axis()
            self.outer.pop()
            self.take("]")
            node = Product((node, inner))
        return node

    def power(self, family: str, consumes: bool) -> Charge:
        negative = self.accept("-")
        scale = int(self.take(kind="number")) * (-1 if negative else 1) * (-1 if consumes else 1)
        sign = int(self.take(kind="number")) if self.accept("~") else scale % 2
        if sign not in (0, 1):
            raise self.error(f"the sign's power after '~' is {sign}; expected 0 or 1")
        return Charge(family, scale, sign)

    def nest(self, name: str) -> None:
        if not self.outer:
            self.parents.setdefault(name, None)
            return
        known = self.parents.get(name)
        if known is not None and known != self.outer[-1]:
            raise self.error(f"'{name}' stands inside both '{known}' and '{self.outer[-1]}'")
        self.parents[name] = self.outer[-1]


def parse_axis(text: str, where: str = "axis") -> tuple[Node, dict[str, str | None]]:
    """Read one axis; returns it and, for every class in it, the class whose brackets it stands in (or None)."""
    if text == "-":
        return Fixed(0), {}
    reader = _Reader(text, where)
    node = reader.axis()
    if reader.at < len(reader.tokens):
        raise reader.error(f"'{reader.peek()}' after its end")
    return node, reader.parents


def render_axis(node: Node, parents: Mapping[str, str | None] | None = None) -> str:
    """Write an axis in the language ``parse_axis`` reads; with ``parents``, nested classes stand in brackets."""
    if isinstance(node, Fixed):
        return str(node.size) if node.size else "-"
    if isinstance(node, Units):
        return _render_units(node)
    if isinstance(node, Concat):
        return ("|" if isinstance(node, Interleaved) else "+").join(
            _in_parentheses(segment, parents) for segment in node.segments
        )
    return _render_product(node.factors, parents or {})


def _render_product(factors: tuple[Node, ...], parents: Mapping[str, str | None]) -> str:
    first, rest = factors[0], factors[1:]
    inside = [parents.get(unit.name) for factor in rest for unit in units_of(factor)]
    if isinstance(first, Units) and inside and all(parent == first.name for parent in inside):
        return f"{_render_outer(first)}[{render_axis(rest[0] if len(rest) == 1 else Product(rest), parents)}]"
    text = _in_parentheses(first, parents)
    return f"{text}*{_render_product(rest, parents)}" if rest else text


def _in_parentheses(node: Node, parents: Mapping[str, str | None] | None) -> str:
    """A part of an axis, in parentheses where it has parts itself."""
    text = render_axis(node, parents)
    return f"({text})" if isinstance(node, Concat) else text


def _render_outer(node: Units) -> str:
    """A class before a bracket: there a bare name carries no scale."""
    text = _render_units(node)
    return f"{text}^1" if text == node.name else text.removesuffix("^0")


def _render_units(node: Units) -> str:
    own = next((charge for charge in node.charges if charge.family == ""), None)
    others = ",".join(f"{charge.family}:{_render_power(charge)}" for charge in node.charges if charge.family)
    braces = f"{{{others}}}" if others else ""
    if own is None:
        return node.name + (braces or "^0")
    if not others and own.sign == 1 and abs(own.scale) == 1:
        return node.name if own.scale == 1 else f"/{node.name}"
    return f"{node.name}^{_render_power(own)}{braces}"


def _render_power(charge: Charge) -> str:
    return f"{charge.scale}" if charge.sign == charge.scale % 2 else f"{charge.scale}~{charge.sign}"
