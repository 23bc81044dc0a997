"""Networks that read weights of any discovered model, and respect its group."""

from coset.metanet._baselines import FittedStatistics, FlatReader, fit_statistics, weight_statistics
from coset.metanet._graph import GAUGES, NeuralGraph, neural_graph
from coset.metanet._layout import Block, Layout, NodeSet
from coset.metanet._messages import GAT, GCN, MessagePassing
from coset.metanet._pna import PNALayer
from coset.metanet._ranks import rank_correlation
from coset.metanet._reader import PNA, GATReader, GCNReader, Reader, RelationalTransformer
from coset.metanet._relational import RelationalLayer
from coset.metanet._training import FittedReader, fit_reader

__all__ = [
    "GAT",
    "GAUGES",
    "GCN",
    "PNA",
    "Block",
    "FittedReader",
    "FittedStatistics",
    "FlatReader",
    "GATReader",
    "GCNReader",
    "Layout",
    "MessagePassing",
    "NeuralGraph",
    "NodeSet",
    "PNALayer",
    "Reader",
    "RelationalLayer",
    "RelationalTransformer",
    "fit_reader",
    "fit_statistics",
    "neural_graph",
    "rank_correlation",
    "weight_statistics",
]
