"""Small networks to be stitched: the same function with other weights, and data they answer without a mistake."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from coset.represent.stitching._stitch import StitchTraining
from declared import declared

AT_ONCE = StitchTraining(epochs=0, batch_statistics=False)


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double().eval()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def moved(model: nn.Module, x: Tensor, seed: int = 1) -> nn.Module:
    """The same function with other weights: a random element of the model's own group acts on them."""
    sym = declared(model)
    params = {name: tensor for name, tensor in model.state_dict().items() if name in sym.parameters}
    other = copy.deepcopy(model)
    other.load_state_dict(model.state_dict() | sym.act(sym.random(torch.Generator().manual_seed(seed)), params))
    torch.testing.assert_close(other(x), model(x), rtol=1e-8, atol=1e-8)
    return other


def labelled(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs with the model's own answers, which it gets right by definition."""
    return x, model(x).argmax(1)


def balanced(model: nn.Module, x: Tensor) -> nn.Module:
    """The model with a last bias such that its answers are not all the same."""
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    with torch.no_grad():
        last.bias.sub_(model(x).mean(0))
    return model
