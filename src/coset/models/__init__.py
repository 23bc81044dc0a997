"""Architectures: plain modules with stable parameter names, built by name or from the user's own factory."""

from coset.models.activations import ACTIVATIONS, ActivationSpec, Elementwise, make_activation
from coset.models.attention import SelfAttention
from coset.models.cct import CCT
from coset.models.description import Description, LayerDescription, describe
from coset.models.mlp import MLP, ResidualMLP
from coset.models.myrtle import MyrtleCNN
from coset.models.normalization import ChannelLayerNorm, FilterResponseNorm, ThresholdedLinear
from coset.models.registry import MODELS, BuiltIn, build, example_input
from coset.models.resnet import BasicBlock, ResNet, ResNet18, ResNet20
from coset.models.tiny10 import Tiny10

__all__ = [
    "ACTIVATIONS",
    "CCT",
    "MLP",
    "MODELS",
    "ActivationSpec",
    "BasicBlock",
    "BuiltIn",
    "ChannelLayerNorm",
    "Description",
    "Elementwise",
    "FilterResponseNorm",
    "LayerDescription",
    "MyrtleCNN",
    "ResNet",
    "ResNet18",
    "ResNet20",
    "ResidualMLP",
    "SelfAttention",
    "ThresholdedLinear",
    "Tiny10",
    "build",
    "describe",
    "example_input",
    "make_activation",
]
