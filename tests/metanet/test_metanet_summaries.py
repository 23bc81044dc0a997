"""What invariant heads see: summaries as their formulas have them, standardised over networks."""

import numpy as np
import pytest
import torch
from torch import nn

import coset
from coset.errors import InputError
from coset.metanet import PNA, RelationalTransformer
from coset.metanet._embedding import compressed
from coset.metanet._summaries import EDGES, ENTRIES, LEAST, LEAST_OF_ALL, QUANTILES, UNITS

SIZES = {"channels": 8, "heads": 2, "layers": 2}


def networks(count, apart=1.0, width=5):
    """Networks whose weights differ by the share ``apart``, and their symmetry."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    sym = coset.discover(model, torch.randn(2, 3, dtype=torch.float64))
    generator = torch.Generator().manual_seed(1)
    noise = {n: torch.randn(count, *t.shape, generator=generator, dtype=t.dtype) for n, t in model.state_dict().items()}
    return sym, {name: tensor + apart * noise[name] * tensor.std() for name, tensor in model.state_dict().items()}


def seen(reader, stack, method="forward"):
    """Summaries by what they are of."""
    graph = reader.read(stack)
    nodes, edges, _ = reader.features(graph)
    found = getattr(reader.head.summaries, method)(graph, reader.embedding, nodes, edges)
    return graph, nodes, edges, {(item.part, item.name): item.values for item in found}


def moments(rows):
    rows = rows.detach().numpy()
    return [*rows.mean(0), *np.sqrt(rows.var(0) + 1e-6), *rows.max(0), *rows.min(0)]


@pytest.mark.parametrize("gauge", ["canonical", "layers", "none"])
def test_summaries_are_those_of_units_edges_and_entries(gauge):
    sym, stack = networks(4)
    reader = PNA(sym, gauge=gauge, **SIZES).double()
    reader.embedding.calibrate(reader.read(stack))
    graph, nodes, edges, found = seen(reader, stack, "raw")
    layout = graph.layout
    assert {name for part, name in found if part == UNITS} == {item.name for item in layout.sets}
    assert {name for part, name in found if part == EDGES} == {"0.weight", "2.weight", "4.weight"}
    assert {name for part, name in found if part == ENTRIES} == set(stack)
    for number in range(4):
        for item in layout.sets:
            own = nodes[number, item.start : item.start + item.count]
            assert found[UNITS, item.name][number].tolist() == pytest.approx(moments(own))
        for name, values in edges.items():
            assert found[EDGES, name][number].tolist() == pytest.approx(moments(values[number].flatten(0, -2)))
        for block in layout.blocks:
            own = compressed(graph.entries[block.name][number] / reader.embedding.size(block)).flatten().numpy()
            wanted = [own.mean(), np.sqrt(own.var() + 1e-6), *np.quantile(own, QUANTILES)]
            assert found[ENTRIES, block.name][number].tolist() == pytest.approx(wanted)


def test_summaries_are_standardised_over_the_networks_of_calibration():
    sym, stack = networks(300)
    reader = RelationalTransformer(sym, **SIZES).double()
    few = {name: tensor[:256] for name, tensor in stack.items()}
    reader.calibrate(stack)
    *_, before = seen(reader, few, "raw")
    *_, after = seen(reader, few)
    for key, values in before.items():
        size, whole = values.std(0), values.square().mean(0).sqrt()
        size = torch.where(size < LEAST * whole, whole, size)
        size = torch.where(whole < LEAST_OF_ALL * whole.max(), whole.max(), size)
        torch.testing.assert_close(after[key], compressed((values - values.mean(0)) / size))
    *_, rest = seen(reader, {name: tensor[256:] for name, tensor in stack.items()})
    whole = torch.cat(list(rest.values()), 1)
    assert 0.5 < float(whole.detach().std(0).median()) < 2


@pytest.mark.parametrize("kind", [RelationalTransformer, PNA])
def test_small_differences_between_networks_are_seen(kind):
    """Networks that have begun at the same weights: a calibrated reader tells them apart as well as any others."""
    spread = {}
    for apart in (1.0, 1e-2):
        sym, stack = networks(64, apart)
        reader = kind(sym, 3, **SIZES).double()
        reader.calibrate(stack)
        spread[apart] = float(reader(stack).detach().std(0).mean())
        if apart < 1:
            plain = kind(sym, 3, **SIZES).double()
            plain.embedding.calibrate(plain.read(stack))
            assert float(plain(stack).detach().std(0).mean()) < 0.1 * spread[apart]
    assert 0.5 < spread[1e-2] / spread[1.0] < 2


def test_a_single_network_and_equal_ones_have_nothing_to_standardise_by():
    sym, stack = networks(3, 0.0)
    reader = RelationalTransformer(sym, **SIZES).double()
    one = {name: tensor[0] for name, tensor in stack.items()}
    plain = reader(one)
    reader.embedding.calibrate(reader.read(one))
    plain = reader(one)
    reader.calibrate(one)
    assert torch.equal(reader(one), plain)
    reader.calibrate(stack)
    assert bool(reader(stack).isfinite().all())


def test_other_architectures_are_read_by_kinds():
    sym, stack = networks(40)
    wide, wider = networks(40, width=9)
    torch.manual_seed(0)
    deep = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(),
                         nn.Linear(4, 2)).double()  # fmt: skip
    other = coset.discover(deep, torch.randn(2, 3, dtype=torch.float64))
    reader = RelationalTransformer(sym, **SIZES).double()
    reader.calibrate(stack)
    kinds = reader.head.summaries.rows[ENTRIES]
    layout = reader.read(deep.state_dict(), sym=other).layout
    assert "6.weight" not in kinds
    assert "6.weight" in {block.name for block in layout.blocks}
    before = reader(deep.state_dict(), sym=other)
    changed = {name: t * 2 if name == "6.weight" else t for name, t in deep.state_dict().items()}
    # What is rounded differs by 1e-15.
    assert float((reader(changed, sym=other) - before).detach().abs()) > 1e-6
    assert float(reader(wider, sym=wide).detach().std()) > 1e-3


def test_dropout_is_of_training_alone():
    sym, stack = networks(6)
    reader = PNA(sym, 2, dropout=0.5, **SIZES).double()
    assert not torch.equal(reader(stack), reader(stack))
    reader.eval()
    assert torch.equal(reader(stack), reader(stack))
    for wrong in (1.0, -0.1, "much", True):
        with pytest.raises(InputError, match=r"dropout is .*; expected a number from 0 to below 1"):
            PNA(sym, dropout=wrong)
