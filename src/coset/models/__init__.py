"""Architectures: plain modules with stable parameter names, built by name or from the user's own factory."""

from coset._callables import load_callable
from coset.models._activations import ACTIVATIONS, ActivationSpec, Elementwise, make_activation
from coset.models._cct import CCT, SelfAttention
from coset.models._description import Description, LayerDescription, describe
from coset.models._mlp import MLP, ResidualMLP
from coset.models._normalization import ChannelLayerNorm, FilterResponseNorm, ThresholdedLinear
from coset.models._plain_cnn import MyrtleCNN, Tiny10
from coset.models._registry import MODELS, BuiltIn, build, example_input
from coset.models._resnet import BasicBlock, ResNet, ResNet18, ResNet20
from coset.models._siren import Siren
from coset.models._transformer import Transformer, generate
from coset.models._vision_transformer import VisionTransformer

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
    "Siren",
    "ThresholdedLinear",
    "Tiny10",
    "Transformer",
    "VisionTransformer",
    "build",
    "describe",
    "example_input",
    "generate",
    "load_callable",
    "make_activation",
]
