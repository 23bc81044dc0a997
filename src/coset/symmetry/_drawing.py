"""A picture of a graph: layers as boxes, classes as colours, heads and groups as nested boxes; blocks that repeat once.

Written as SVG by hand, so that nothing has to be installed; ``dot`` gives the same for Graphviz.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from coset.symmetry.layers import INPUT, OUTPUT, Activation, Layer
from coset.symmetry.structure import UnitClass, ancestors, shape_of

if TYPE_CHECKING:
    from coset.symmetry.graph import Graph

_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7a68a6", "#8c6d31", "#17807e", "#b5486b",
    "#5b7f2b", "#3f5aa8", "#a0522d", "#2f8fbd", "#9a7d0a", "#6c3483",
)  # fmt: skip
_STILL = "#b8b8b8"
_ROW, _PAD, _LEFT, _WIDTH, _CHIP = 26, 10, 60, 620, 34


@dataclass
class _Block:
    """Layers with one name before theirs, and how many blocks like it follow each other."""

    name: str
    rows: list[Layer]
    last: str = ""
    count: int = 1


@dataclass
class _Picture:
    """Lines of SVG, and how far down they reach."""

    lines: list[str] = field(default_factory=list)
    y: float = 16.0

    def box(self, x: float, y: float, w: float, h: float, fill: str, stroke: str = "none", radius: float = 4) -> None:
        self.lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{radius}" fill="{fill}" '
            f'stroke="{stroke}"/>'
        )

    def text(self, x: float, y: float, words: str, size: int = 12, colour: str = "#222", anchor: str = "start") -> None:
        self.lines.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">'
            f"{html.escape(words)}</text>"
        )


def svg(graph: "Graph") -> str:
    """The picture as SVG."""
    blocks = list(_folded(graph))
    shown = {layer.name for block in blocks for layer in block.rows}
    colours = _colours(graph, shown)
    picture, places = _Picture(), dict[str, float]()
    _row(picture, places, graph, Layer(INPUT, "", (), ()), colours)
    for block in blocks:
        top = picture.y
        if block.name:
            picture.y += _ROW
        for layer in block.rows:
            _row(picture, places, graph, layer, colours)
        if block.name:
            title = block.name if block.count == 1 else f"{block.name} … {block.last}   × {block.count}"
            picture.lines.insert(0, _frame(top, picture.y - top))
            picture.text(_LEFT - 2, top + 17, title, 12, "#555")
            picture.y += _PAD
    ends = tuple(name for name in graph.ends)
    _row(picture, places, graph, Layer(OUTPUT, "", (), ends), colours)
    arrows = _arrows(
        [*(layer for block in blocks for layer in block.rows), Layer(OUTPUT, "", (), ends)], places, blocks
    )
    _legend(picture, graph, colours)
    body = "\n".join([*picture.lines, *arrows])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 120} {picture.y + 10:.0f}" '
        f'width="{_LEFT + _WIDTH + 120}" font-family="Helvetica, Arial, sans-serif">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def dot(graph: "Graph") -> str:
    """The graph in the language of Graphviz: layers as nodes, coloured by the class on their output."""
    colours = _colours(graph, {layer.name for layer in graph.layers})
    lines = ["digraph network {", "  node [shape=box, style=filled, fontname=Helvetica];"]
    for name in (INPUT, OUTPUT):
        lines.append(f'  "{name}" [fillcolor=white];')
    for layer in graph.layers:
        classes = graph.activations[layer.name].classes if layer.name in graph.activations else ()
        colour = colours.get(classes[-1], _STILL) if classes else _STILL
        lines.append(f'  "{layer.name}" [label="{layer.name}\\n{layer.kind}", fillcolor="{colour}40"];')
    for layer in (*graph.layers, Layer(OUTPUT, "", (), graph.ends)):
        lines += [f'  "{name}" -> "{layer.name}";' for name in layer.reads]
    return "\n".join([*lines, "}"]) + "\n"


def _frame(y: float, height: float) -> str:
    return (
        f'<rect x="{_LEFT - 10}" y="{y:.1f}" width="{_WIDTH + 20}" height="{height + 4:.1f}" rx="8" fill="#f4f4f4" '
        f'stroke="#cccccc"/>'
    )


def _row(picture: _Picture, places: dict[str, float], graph: "Graph", layer: Layer, colours: Mapping[str, str]) -> None:
    """One layer: its name and kind on the left, what stands on its output on the right."""
    y = picture.y
    places[layer.name] = y + _ROW / 2 - 2
    edge = layer.name in (INPUT, OUTPUT)
    picture.box(_LEFT, y, _WIDTH, _ROW - 5, "#ffffff", "#999999" if not edge else "#333333")
    picture.text(_LEFT + 8, y + 15, layer.name, 12)
    picture.text(_LEFT + 330, y + 15, layer.kind, 11, "#666")
    item = graph.activations.get(layer.name)
    if item is not None:
        picture.text(_LEFT + _WIDTH - 130, y + 15, "×".join(str(n) for n in item.shape[1:]), 11, "#666", "end")
        _chips(picture, graph.nodes, item, y, colours)
    picture.y += _ROW


def _chips(
    picture: _Picture, nodes: Mapping[str, UnitClass], item: Activation, y: float, colours: Mapping[str, str]
) -> None:
    """The classes on an output, each in the boxes that it is nested in."""
    names = [name for name in item.classes if nodes[name].size > 1]
    inner = [name for name in names if not any(name in ancestors(other, nodes) for other in names)]
    x = _LEFT + _WIDTH - 122.0
    if not inner:
        picture.box(x, y + 5, _CHIP, 11, _STILL, radius=2)
    for name in inner[:3]:
        chain = (*ancestors(name, nodes), name)
        for depth, part in enumerate(chain):
            inset = 2.5 * depth
            picture.box(x + inset, y + 2 + inset, _CHIP - 2 * inset, 17 - 2 * inset, colours[part], "#ffffff", 2)
        x += _CHIP + 4


def _arrows(rows: Sequence[Layer], places: Mapping[str, float], blocks: Sequence[_Block]) -> list[str]:
    """From each layer to those that read it: short ones between neighbours, bows on the right past others."""
    hidden = _stand_ins(blocks)
    order = sorted(places, key=lambda name: places[name])
    near = {name: order[number - 1] for number, name in enumerate(order) if number}
    lines = []
    for layer in rows:
        for name in dict.fromkeys(hidden.get(source, source) for source in layer.reads):
            if name not in places or places[name] >= places[layer.name]:
                continue
            start, end = places[name], places[layer.name]
            if near.get(layer.name) == name:
                lines.append(f'<path d="M {_LEFT - 4} {start:.1f} h -8 V {end:.1f} h 8" fill="none" stroke="#888"/>')
            else:
                x, bow = _LEFT + _WIDTH + 2, min(18 + 0.22 * (end - start), 90)
                lines.append(
                    f'<path d="M {x} {start + 3:.1f} C {x + bow:.1f} {start + 3:.1f}, {x + bow:.1f} {end - 3:.1f}, '
                    f'{x} {end - 3:.1f}" fill="none" stroke="#d55e00" stroke-opacity="0.7"/>'
                )
    return lines


def _stand_ins(blocks: Sequence[_Block]) -> dict[str, str]:
    """For layers of blocks that are not drawn, the same layer of the block that is drawn for them."""
    found = {}
    for block in blocks:
        if block.count > 1:
            prefix, _, first = block.name.rpartition(".")
            for layer in block.rows:
                for number in range(int(first), int(first) + block.count):
                    found[f"{prefix}.{number}{layer.name[len(block.name) :]}".lstrip(".")] = layer.name
    return found


def _legend(picture: _Picture, graph: "Graph", colours: Mapping[str, str]) -> None:
    """What each colour is."""
    picture.y += _PAD
    for name, colour in colours.items():
        item = graph.nodes[name]
        x, y = _LEFT + 18.0 * len(ancestors(name, graph.nodes)), picture.y
        picture.box(x, y + 3, 16, 11, colour, radius=2)
        size = "×".join(str(n) for n in shape_of(name, graph.nodes))
        moves = "permute" if item.permutes else f"as {item.follows}" if item.follows else "in order"
        picture.text(x + 22, y + 13, f"{name}: {size} units, {moves}", 11, "#444")
        picture.y += 18


def _colours(graph: "Graph", shown: set[str]) -> dict[str, str]:
    """A colour for each class on the outputs that are drawn, and for those around it."""
    names: dict[str, None] = {}
    for layer, item in graph.activations.items():
        if layer in shown:
            for name in item.classes:
                if graph.nodes[name].size > 1:
                    names |= dict.fromkeys((*ancestors(name, graph.nodes), name))
    return {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(names)}


def _folded(graph: "Graph") -> Iterator[_Block]:
    """Layers by the block that they are in, with neighbours that are alike drawn once."""
    found: list[_Block] = []
    around = {name[:at] for layer in graph.layers for name in (layer.name,) for at, c in enumerate(name) if c == "."}
    for prefix, rows in groupby(graph.layers, key=lambda layer: _prefix(layer.name, layer.name in around)):
        block = _Block(prefix, list(rows), prefix)
        before = found[-1] if found else None
        if before is not None and _follows(graph, before, block):
            before.last, before.count = block.name, before.count + 1
        else:
            found.append(block)
    yield from found


def _prefix(name: str, around: bool) -> str:
    """The part of a name up to its last number with something behind it: stages.0.1 of stages.0.1.conv1.

    ``around``: it is the name of a block with layers in it, which adds what they give.
    """
    words = name.partition("#")[0].split(".")
    numbers = [at for at, word in enumerate(words if around else words[:-1]) if word.isdigit()]
    return ".".join(words[: numbers[-1] + 1]) if numbers else ""


def _follows(graph: "Graph", one: _Block, two: _Block) -> bool:
    """Whether a block is the next one of its kind: the same layers with outputs of the same form."""
    stem, _, number = one.last.rpartition(".")
    if not one.name or two.name != f"{stem}.{int(number) + 1}".lstrip("."):
        return False
    return [_signature(graph, one.name, row) for row in one.rows] == [
        _signature(graph, two.name, row) for row in two.rows
    ]


def _signature(graph: "Graph", prefix: str, layer: Layer) -> tuple[object, ...]:
    item = graph.activations.get(layer.name)
    shapes = () if item is None else tuple(shape_of(name, graph.nodes) for name in item.classes)
    sizes = tuple(shape for shape in shapes if shape[-1] > 1)
    return layer.name[len(prefix) :], layer.kind, None if item is None else item.shape, sizes
