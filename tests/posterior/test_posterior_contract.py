"""What every method of inference must do: each row of ``CASES`` goes through the whole suite."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pytest
import torch

import coset
from coset.distribution.files import pack
from coset.errors import InputError
from coset.models import MLP
from coset.posterior import FITS, Round

DESCENT = {"batch_size": 16, "learning_rate": 0.05}
CHAINS = {"burn_in": 10, "draws": 20, "batch_size": 9, "chains": 3, "step_size": 1e-3, "spread": 0.1}


@dataclass(frozen=True, eq=False)
class Case:
    """A method with settings, and what of them makes another run of it."""

    method: str
    settings: dict[str, Any]
    changes: tuple[tuple[str, Any, str], ...] = field(default=())
    """Name, other value, what the refusal says beside "belongs to another run"."""
    lead: tuple[int, ...] = ()
    """Axes before those of the weights, (chains, draws)."""
    dtype: torch.dtype = torch.float32
    early: str = ""
    """What the notes say of a run that is ended in its first quarter."""

    def run(self, **control):
        return FITS[self.method](network(self.dtype), blobs(self.dtype), **{"show": False, **self.settings, **control})


CASES = {
    "map, adam": Case("map", DESCENT | {"epochs": 6, "optimizer": "adam", "schedule": "cosine"}),
    "map, sgd": Case("map", DESCENT | {"epochs": 6, "optimizer": "sgd", "momentum": 0.9, "schedule": "cosine"}),
    "ensemble": Case("ensemble", DESCENT | {"epochs": 6, "members": 3}, lead=(3, 1)),
    "ensemble, recorded": Case("ensemble", DESCENT | {"epochs": 6, "members": 3, "compile": False}, lead=(3, 1)),
    "ensemble, one by one": Case("ensemble", DESCENT | {"epochs": 6, "members": 3, "batched": False}),
    "mean-field": Case(
        "mean-field",
        DESCENT | {"epochs": 5, "momentum": 0.9, "optimizer": "sgd", "samples": 2},
        (("learning_rate", 0.1, r"recipe learning_rate is 0\.05 there and 0\.1 here"),),
    ),
    **{
        f"symmetrized, {proposal}": Case(
            "symmetrized",
            DESCENT | {"epochs": 4, "batch_size": 30, "samples": 2, "K": 3, "std": 0.3, "proposal": proposal},
            (("K", 4, "K is 3 there and 4 here"), ("proposal", "exact", "proposal is")),
        )
        for proposal in ("uniform", "sequential")
    },
    "swag": Case("swag", DESCENT | {"epochs": 8, "momentum": 0.9, "rank": 3, "collect_every": 3}),
    "svgd": Case("svgd", DESCENT | {"epochs": 6, "particles": 3}, lead=(3, 1)),
    **{
        f"sgmcmc, {name}": Case("sgmcmc", CHAINS | changes, (("step_size", 2e-3, ""),), (3, 20), torch.float64)
        for name, changes in (
            ("sgld", {"method": "sgld"}),
            ("own batches", {"method": "sghmc", "own_batches": True, "thin": 2}),
            ("rms", {"method": "sghmc", "preconditioner": "rms"}),
            ("cycles", {"method": "csghmc", "cycles": 2, "burn_in": 5}),
        )
    },
    **{
        f"hmc, {mass}": Case(
            "hmc",
            {"draws": 8, "warmup": 12, "leapfrog_steps": 3, "chains": 3, "thin": 2, "mass": mass, "spread": 0.1},
            (("jitter", 0.1, ""),),
            (3, 8),
            torch.float64,
            "burn-in",
        )
        for mass in ("identity", "diagonal")
    },
    "hmc, length": Case(
        "hmc", {"draws": 8, "warmup": 12, "chains": 3, "thin": 2, "spread": 0.1, "compile": False}, (), (3, 8)
    ),
    **{
        f"mclmc, {name}": Case(
            "mclmc",
            {"draws": 8, "warmup": 40, "chains": 3, "thin": 2, "spread": 0.1} | changes,
            (("step_size", 0.01, ""),),
            (3, 8),
            torch.float64,
            "burn-in",
        )
        for name, changes in (
            ("adjusted", {"adjusted": True, "warmup": 12}),
            ("plain", {"mass": "diagonal", "compile": False}),
            ("minimal norm", {"integrator": "minimal-norm", "length": "spread", "rows": 40}),
            ("minibatches", {"batch_size": 25}),
        )
    },
    "ensemble-chains": Case(
        "ensemble-chains",
        DESCENT | {"epochs": 2, "members": 3, "warmup": 40, "draws": 8, "sampling": {"thin": 2}},
        (("sampler", "hmc", ""),),
        (3, 8),
    ),
    "laplace": Case("laplace", {"epochs": 5, "batch_size": 8, "learning_rate": 0.05}),
}

EQUIVARIANT = {
    "map": {"epochs": 5},
    "ensemble": {"epochs": 5, "members": 2},
    "swag": {"epochs": 6, "rank": 2, "collect_every": 1},
    "svgd": {"epochs": 5, "particles": 2},
    "laplace": {"epochs": 5},
}
"""Methods that draw nothing weight by weight: begun at g·θ they end at g·(what they end at from θ)."""

every_case = pytest.mark.parametrize("name", CASES)
every_method = pytest.mark.parametrize("name", {case.method: name for name, case in CASES.items()}.values())


def blobs(dtype):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    centres = 2 * torch.randn(3, 4, generator=generator, dtype=dtype)
    return centres[y] + torch.randn(60, 4, generator=generator, dtype=dtype), y


def network(dtype):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MLP(4, [6], 3).to(dtype)


@lru_cache
def whole(name):
    """A run that nothing disturbs, which leaves torch's generators as they were."""
    before = torch.random.get_rng_state()
    fit = CASES[name].run()
    assert torch.equal(torch.random.get_rng_state(), before)
    return fit


def records(fit):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in fit.trace]


def same(a, b):
    (mine, told), (theirs, there) = pack(a.posterior), pack(b.posterior)
    return told == there and all(torch.equal(tensor, theirs[key]) for key, tensor in mine.items())


def test_every_method_is_here():
    assert {case.method for case in CASES.values()} == set(FITS)


@every_case
def test_an_interrupted_run_goes_on_to_the_same_bits(name, tmp_path):
    """Once ended by the callback, once by an exception; a file of another run, or damaged, is refused."""
    case, path = CASES[name], tmp_path / "run"
    count = len(whole(name).trace)
    first, second = count // 4, count // 2

    class Interrupted(Exception):
        pass

    def interrupt(number, record):
        if number == second:
            raise Interrupted

    halted = case.run(checkpoint=path, callback=lambda told: told.number == first)
    assert len(halted.trace) == first + (2 if case.method == "laplace" else 1)
    assert case.early in "".join(halted.notes)
    with pytest.raises(Interrupted):
        case.run(checkpoint=path, checkpoint_seconds=0.0, callback=interrupt)
    resumed = case.run(checkpoint=path)
    assert same(resumed, whole(name))
    assert records(resumed) == records(whole(name))
    assert resumed.notes == whole(name).notes
    if case.lead:
        assert all(tensor.shape[:2] == case.lead for tensor in resumed.posterior.params.values())
    for key, value, message in case.changes:
        with pytest.raises(InputError, match=f"belongs to another run: .*{message}"):
            case.run(checkpoint=path, **{key: value})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match="not a whole safetensors file"):
        case.run(checkpoint=path)


@every_method
def test_the_seed_decides_and_a_callback_that_looks_changes_nothing(name):
    told: list[Round] = []
    again = CASES[name].run(callback=lambda moment: told.append(moment) or torch.rand(3).sum() < 0)
    assert same(again, whole(name))
    assert records(again) == records(whole(name))
    rounds = len(whole(name).trace) - (CASES[name].method == "laplace")
    assert [moment.number for moment in told] == list(range(rounds))
    assert [dict(moment.record) for moment in told] == [dict(record) for record in again.trace][:rounds]
    assert not same(CASES[name].run(seed=1), whole(name))


@every_method
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
        ({"callback": 3}, "callback is a int; expected a function"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"likelihood": "nope"}, "likelihood is 'nope'; expected one of"),
        ({"prior": -2.0}, "-2.0"),
    ],
)
def test_bad_settings_are_named(name, change, message):
    with pytest.raises(InputError, match=message):
        CASES[name].run(**change)


@pytest.mark.parametrize("method", EQUIVARIANT)
def test_it_does_not_see_the_order_of_units(method):
    """fit(g·θ) = g·fit(θ) for permutations, which the prior does not see either."""
    model, (x, y) = network(torch.float64), blobs(torch.float64)
    sym = coset.discover(model, x).restrict(scales=False)
    g = sym.random(torch.Generator().manual_seed(1))
    starts = [{key: value.clone() for key, value in model.state_dict().items()}]
    if method in ("ensemble", "svgd"):
        starts.append({key: 0.5 * value + 0.1 for key, value in starts[0].items()})
    found = []
    for move in (sym.identity(), g):
        begun = [sym.act(move, start) for start in starts]
        settings = {"batch_size": 16, "learning_rate": 0.01, "optimizer": "sgd", "show": False} | EQUIVARIANT[method]
        if method == "swag":
            settings.pop("optimizer")
        if len(begun) > 1:
            settings["starts"] = begun
        elif method == "laplace":
            model.load_state_dict(begun[0])
        else:
            settings["start"] = begun[0]
        found.append(FITS[method](model, (x, y), **settings).posterior)
    for part in ("mean", "std"):
        for key, tensor in getattr(sym.act(g, found[0]), part).items():
            torch.testing.assert_close(getattr(found[1], part)[key], tensor, rtol=1e-9, atol=1e-11)
