"""Networks that read weights of any discovered model, and respect its group; audits of any reader of weights."""

from coset.metanet._audit import audit
from coset.metanet._baselines import FittedStatistics, FlatReader, fit_statistics, weight_statistics
from coset.metanet._blocks import Block, Layout, NodeSet
from coset.metanet._graph import GAUGES, NeuralGraph, neural_graph
from coset.metanet._messages import GAT, GCN, MessagePassing
from coset.metanet._pna import PNALayer
from coset.metanet._ranks import rank_correlation
from coset.metanet._reader import PNA, GATReader, GCNReader, Reader, RelationalTransformer
from coset.metanet._relational import RelationalLayer
from coset.metanet._training import FittedReader, fit_reader
from coset.metanet.auditing.result import Audit, OrbitChange

__all__ = [
    "GAT",
    "GAUGES",
    "GCN",
    "PNA",
    "Audit",
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
    "OrbitChange",
    "PNALayer",
    "Reader",
    "RelationalLayer",
    "RelationalTransformer",
    "audit",
    "fit_reader",
    "fit_statistics",
    "neural_graph",
    "rank_correlation",
    "weight_statistics",
]
