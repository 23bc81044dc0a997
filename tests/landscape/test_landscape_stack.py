"""Barriers and outputs of many networks at once are those of each alone."""

import pytest
import torch
from torch import nn

from architectures import randomized
from coset.errors import InputError
from coset.landscape import barrier, barriers, linear, on
from coset.models import MLP
from coset.running import outputs_of_stack, outputs_with


class Branching(nn.Module):
    """Its values decide what is computed: vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        y = self.layer(x)
        return y if float(y.detach().sum()) > 0 else -y


@pytest.mark.parametrize("build", [lambda: MLP(4, [5, 3], 3, norm="batch"), Branching])
def test_stacks_give_what_single_networks_give(build):
    model = build().double().eval()
    generator = torch.Generator().manual_seed(0)
    networks = [randomized(model, generator) for _ in range(6)]
    a, b = (
        {name: torch.stack([n[name] for n in part]) for name in networks[0]} for part in (networks[:3], networks[3:])
    )
    x = torch.randn(10, 4, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 3, (10,), generator=generator)
    outputs = outputs_of_stack(model, a, x)
    for number in range(3):
        torch.testing.assert_close(outputs[number], outputs_with(model, networks[number], x))
    functionals = on(model, test=(x, y), batch_size=4)
    found = barriers(linear(a, b), functionals, points=5)
    for number in range(3):
        alone = barrier(linear(networks[number], networks[3 + number]), functionals, points=5)
        for name, profile in alone.items():
            mine = found[name].one(number)
            assert mine.taus == profile.taus
            assert mine.values == pytest.approx(profile.values, rel=1e-12)
            assert float(found[name].barriers[number]) == pytest.approx(profile.barrier, abs=1e-12)


def test_refusals_name_what_is_wrong():
    model = MLP(4, [3], 2).eval()
    stack = {name: tensor.detach().repeat(2, *[1] * tensor.ndim) for name, tensor in model.state_dict().items()}
    name = next(iter(stack))
    with pytest.raises(InputError, match="leading axes of"):
        outputs_of_stack(model, {**stack, name: stack[name][:1]}, torch.zeros(2, 4))
    with pytest.raises(InputError, match="expected a mean over data"):
        barriers(linear(stack, stack), {"size": lambda point: 0.0})
    with pytest.raises(InputError, match="is empty"):
        barriers(linear(stack, stack), {})
