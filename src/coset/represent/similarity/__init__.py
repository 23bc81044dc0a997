"""How alike two representations are, modulo a group: Procrustes distances, CKA, intervals, tables of layers."""

from coset.represent.similarity._advice import Advice, advice, invariant
from coset.represent.similarity._cka import Side, cka, cka_of_batches, made_side
from coset.represent.similarity._hsic import ESTIMATORS, hsic
from coset.represent.similarity._procrustes import (
    CrossMoments,
    Procrustes,
    added,
    cross_moments,
    procrustes,
    procrustes_of_moments,
)
from coset.represent.similarity.heat_maps import plot_layers
from coset.represent.similarity.kernels import KERNELS
from coset.represent.similarity.layer_matrix import MEASURES, LayerMatrix, compare_layers
from coset.represent.similarity.network_comparison import LayerPair, NetworkComparison, compare_networks
from coset.represent.similarity.resampling import (
    Interval,
    PermutationTest,
    cka_interval,
    cka_test,
    procrustes_interval,
    procrustes_test,
)

__all__ = [
    "ESTIMATORS",
    "KERNELS",
    "MEASURES",
    "Advice",
    "CrossMoments",
    "Interval",
    "LayerMatrix",
    "LayerPair",
    "NetworkComparison",
    "PermutationTest",
    "Procrustes",
    "Side",
    "added",
    "advice",
    "cka",
    "cka_interval",
    "cka_of_batches",
    "cka_test",
    "compare_layers",
    "compare_networks",
    "cross_moments",
    "hsic",
    "invariant",
    "made_side",
    "plot_layers",
    "procrustes",
    "procrustes_interval",
    "procrustes_of_moments",
    "procrustes_test",
]
