"""The symmetry groups of the papers' architectures, declared by hand: permutations, scales and signs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from coset.errors import InputError
from coset.models import CCT, MLP, ChannelLayerNorm, FilterResponseNorm, MyrtleCNN, ResidualMLP, ResNet, Tiny10
from coset.models._cct import EncoderBlock
from coset.symmetry import Intertwiner, Symmetry, Variance, intertwiner


@dataclass
class _Draft:
    """A symmetry being written down, layer by layer."""

    model: nn.Module
    axes: dict[str, str | Variance] = field(default_factory=dict)
    scales: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self.model.state_dict()

    def layer(self, path: str, writes: str, reads: str) -> None:
        """A linear or convolutional layer whose outputs are ``writes`` and whose inputs are ``reads``."""
        self.axes[f"{path}.weight"] = f"{writes} {reads}"
        if self.has(f"{path}.bias"):
            self.axes[f"{path}.bias"] = writes

    def normed(self, path: str, norm: str, units: str, reads: str) -> None:
        """A layer followed by a norm: what may change before the norm, and the gain and offset that carry ``units``."""
        module = self.model.get_submodule(norm)
        if isinstance(module, nn.Identity):
            self.layer(path, units, reads)
            return
        if isinstance(module, nn.LayerNorm | ChannelLayerNorm):
            # All inputs may change sign together: a class of one unit.
            self.layer(path, f"{units}^0*{norm}", reads)
            self.axes[f"{norm}.weight"] = f"{units}*{norm}"
            self.axes[f"{norm}.bias"] = units
            self.scales[norm] = "sign"
            return
        self.layer(path, f"{units}{{{norm}:1}}", reads)
        self.axes[f"{norm}.weight"] = f"{units}^1{{{norm}:0~1}}"
        self.axes[f"{norm}.bias"] = units
        self.scales[f"{units}:{norm}"] = "nonzero"
        if isinstance(module, FilterResponseNorm):
            self.axes[f"{norm}.eps"] = f"{units}{{{norm}:2}}"
            return
        if not isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(f"'{norm}' is a {type(module).__name__}; no symmetry is declared for it")
        self.axes[f"{norm}.running_mean"] = f"{units}{{{norm}:1}}"
        self.axes[f"{norm}.running_var"] = Variance(f"{units}{{{norm}:2}}", module.eps, f"{norm}.weight")

    def activation(self, path: str, units: str) -> str:
        """Let the activation's group free the scales of ``units``; returns how the next layer reads them."""
        if self.has(f"{path}.tau"):
            self.axes[f"{path}.tau"] = units
            self.scales[units] = "positive"
            return f"/{units}"
        if self.has(f"{path}.weight") and self.model.get_parameter(f"{path}.weight").numel() > 1:
            self.axes[f"{path}.weight"] = f"{units}^0"
        group = intertwiner(self.model.get_submodule(path))
        return self.pass_through(group, units)

    def pass_through(self, group: Intertwiner, units: str) -> str:
        self.scales[units] = group
        if group.scale_power != int(group.scale_power):
            raise InputError(
                f"{group.name} multiplies scales by a fractional power, which these declarations do not use"
            )
        return f"/{units}^{int(group.scale_power)}~{group.sign_power % 2}"

    def done(self) -> Symmetry:
        charged = {key: value for key, value in self.scales.items() if value != "one"}
        return Symmetry.from_axes(self.axes, self.model, scales=charged, sizes=self.sizes)


def _mlp(model: MLP) -> Symmetry:
    draft = _Draft(model)
    reads = "-"
    last = len(model.layers) - 1
    for index in range(last):
        units = "stream" if model.residual else f"h{index + 1}"
        draft.normed(f"layers.{index}", f"norms.{index}", units, reads)
        reads = draft.activation(f"activations.{index}", units)
        if model.residual and index > 0 and intertwiner(model.activations[index]).scale_power != 1:
            draft.scales[units] = "one"
    draft.layer(f"layers.{last}", "-", reads)
    return draft.done()


def _residual_mlp(model: ResidualMLP) -> Symmetry:
    draft = _Draft(model)
    # The stream is read by linear maps only: any non-zero scale passes.
    draft.scales["stream"] = "nonzero"
    draft.layer("stem", "stream", "-")
    for index in range(len(model.blocks)):
        path, units = f"blocks.{index}", f"block{index + 1}"
        draft.normed(f"{path}.expand", f"{path}.norm", units, "/stream")
        reads = draft.activation(f"{path}.activation", units)
        draft.layer(f"{path}.contract", "stream", reads)
    draft.layer("fc", "-", "/stream")
    return draft.done()


def _myrtle(model: MyrtleCNN) -> Symmetry:
    draft = _Draft(model)
    reads = "-"
    for index in range(1, 5):
        draft.normed(f"conv{index}", f"norm{index}", f"c{index}", reads)
        reads = draft.activation(f"activation{index}", f"c{index}")
    draft.layer("fc", "-", reads)
    return draft.done()


def _tiny10(model: Tiny10) -> Symmetry:
    draft = _Draft(model)
    reads = "-"
    for index in range(1, 9):
        draft.normed(f"conv{index}", f"bn{index}", f"c{index}", reads)
        reads = draft.pass_through(intertwiner("relu"), f"c{index}")
    draft.layer("fc", "-", reads)
    return draft.done()


def _resnet(model: ResNet) -> Symmetry:
    """One class per stage for the stream and one inside each block; the stream's scales as its activation allows."""
    draft = _Draft(model)
    draft.normed("stem.conv", "stem.norm", "stream1", "-")
    reads = draft.activation("stem.activation", "stream1")
    for stage, blocks in enumerate(model.stages, start=1):
        stream = f"stream{stage}"
        for number in range(len(list(blocks.children()))):
            path, units = f"stages.{stage - 1}.{number}", f"block{stage}.{number + 1}"
            draft.normed(f"{path}.conv1", f"{path}.norm1", units, reads)
            inner = draft.activation(f"{path}.activation1", units)
            draft.normed(f"{path}.conv2", f"{path}.norm2", stream, inner)
            if draft.has(f"{path}.shortcut.conv.weight"):
                draft.normed(f"{path}.shortcut.conv", f"{path}.shortcut.norm", stream, reads)
            if not isinstance(model.get_submodule(f"{path}.activation2"), nn.Identity):
                reads = draft.activation(f"{path}.activation2", stream)
            else:
                # Only linear maps read this stream, unless an activation stands at its start.
                draft.scales.setdefault(stream, "nonzero")
                reads = f"/{stream}"
    draft.layer("fc", "-", reads)
    return draft.done()


def _cct(model: CCT) -> Symmetry:
    """Heads with units inside; the stream permutes; what a LayerNorm gives to linear maps alone scales freely."""
    draft = _Draft(model)
    last = len(model.tokenizer.convolutions) - 1
    for index in range(last + 1):
        units = "stream" if index == last else f"token{index + 1}"
        draft.layer(f"tokenizer.convolutions.{index}", units, f"/token{index}" if index else "-")
        if index < last:
            draft.scales[units] = "positive"
    draft.axes["positions"] = "- stream"
    for index, block in enumerate(model.blocks, start=1):
        path, heads = f"blocks.{index - 1}", f"heads{index}"
        assert isinstance(block, EncoderBlock)
        draft.sizes[heads] = block.attention.heads
        _affine(draft, f"{path}.norm1", f"{path}.norm1")
        qk, vo, units = f"qk{index}", f"vo{index}", f"inner{index}"
        qkv = f"{heads}^0[{qk}]+{heads}^0[/{qk}]+{heads}^0[{vo}]"
        draft.axes[f"{path}.attention.qkv.weight"] = f"{qkv} /stream{{{path}.norm1:1}}"
        draft.axes[f"{path}.attention.projection.weight"] = f"stream {heads}^0[/{vo}]"
        draft.axes[f"{path}.attention.projection.bias"] = "stream"
        draft.scales |= {qk: "nonzero", vo: "nonzero"}
        if not block.renormalize_stream:
            _affine(draft, f"{path}.norm2", f"{path}.norm2")
            draft.layer(f"{path}.expand", units, f"/stream{{{path}.norm2:1}}")
        else:
            draft.axes |= {f"{path}.norm2.weight": "stream", f"{path}.norm2.bias": "stream"}
            draft.layer(f"{path}.expand", units, "stream")
        reads = draft.activation(f"{path}.activation", units)
        draft.layer(f"{path}.contract", "stream", reads)
    _affine(draft, "norm", "norm")
    draft.layer("pool", "-", "/stream{norm:1}")
    draft.layer("fc", "-", "/stream{norm:1}")
    return draft.done()


def _affine(draft: _Draft, norm: str, family: str) -> None:
    """The gain and offset of a LayerNorm on the stream, with a scale of their own."""
    for part in ("weight", "bias"):
        draft.axes[f"{norm}.{part}"] = f"stream{{{family}:1}}"
    draft.scales[f"stream:{family}"] = "nonzero"


_DECLARED: dict[type[nn.Module], Callable[[Any], Symmetry]] = {
    MLP: _mlp,
    ResidualMLP: _residual_mlp,
    MyrtleCNN: _myrtle,
    Tiny10: _tiny10,
    ResNet: _resnet,
    CCT: _cct,
}


def declared(model: nn.Module) -> Symmetry:
    """The symmetry group of a built-in architecture, as written down by hand."""
    if type(model) not in _DECLARED:
        known = ", ".join(kind.__name__ for kind in _DECLARED)
        raise InputError(f"no symmetry is declared for {type(model).__name__}; declared are {known}")
    return _DECLARED[type(model)](model)
