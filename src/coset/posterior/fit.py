"""What inference returns, and the loop all methods share: progress, divergence, checkpoints that resume."""

import inspect
import math
import operator
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from coset import callbacks
from coset._checks import check_seed
from coset._files.sealed import check_writable, checksum, kind, read_sealed, write_sealed
from coset._show.progress import progress
from coset._values import Frozen
from coset.errors import InputError
from coset.posterior.problem import Problem
from coset.symmetry.action import Action
from coset.train import DivergenceError
from coset.train.randomness import own_global_state, stream, stream_seed

KEY = "coset.posterior"
FORMAT = 1
CLOSE = "log-likelihoods"
"""What of a run's identity is compared as numbers are."""
BLOW_UP = 1e6
"""A loss so many times that of before diverges, though it still is a number."""
Q = TypeVar("Q", covariant=True)


class Trace(Sequence[Mapping[str, float]]):
    """The course of a run: one record of numbers for each round (an epoch, or a number of steps)."""

    def __init__(self, records: Sequence[Mapping[str, float]]) -> None:
        self._records = tuple(Frozen(record) for record in records)

    def __getitem__(self, index: Any) -> Any:
        """A record by number, or a column by name."""
        if isinstance(index, str):
            if index not in self.columns:
                raise InputError(f"the trace has no column {index!r}; it has {', '.join(self.columns)}")
            return [record.get(index, math.nan) for record in self._records]
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the numbers."""
        return tuple(dict.fromkeys(name for record in self._records for name in record))

    def __repr__(self) -> str:
        last = ", ".join(f"{name} {value:.5g}" for name, value in (self._records[-1] if self._records else {}).items())
        return f"Trace({len(self)} records; last: {last})"


@dataclass(frozen=True, eq=False)
class Fit(Generic[Q]):
    """A posterior and how it came about.

    ``posterior``: a distribution over all that the model's ``state_dict`` holds. ``trace``: the course of the run, per
    data point where it is a sum over the data. ``notes``: what the user should know of this run.
    """

    posterior: Q
    trace: Trace
    method: str
    seconds: float
    notes: tuple[str, ...] = field(default=())

    def transformed(self, action: Action, *, partial: bool) -> Any:
        """The posterior of g·θ, so that elements act on a ``Fit`` as on what it found."""
        posterior: Any = self.posterior
        return posterior.transformed(action, partial=partial)

    def __repr__(self) -> str:
        return f"Fit({self.method}: {type(self.posterior).__name__}, {self.trace!r}, {self.seconds:.2f} s)"


@dataclass(frozen=True)
class Round:
    """A round of a run, which a callback is told: its ``number`` from 0, and its ``record`` in the trace."""

    number: int
    record: Mapping[str, float]


Callback = callbacks.Callback[Round] | Callable[[int, Mapping[str, float]], bool | None]
"""Called after each round; True ends the run there. A function of two arguments gets number and record, as in 0.1."""


@dataclass(frozen=True)
class Control:
    """How a run is watched and kept: what all methods take beside their own settings.

    ``checkpoint``: a file from which an interrupted run goes on, to the same result; written at the end of a round,
    at most every ``checkpoint_seconds``. ``show``: a progress bar; by default where somebody watches.
    """

    seed: int = 0
    checkpoint: Path | str | None = None
    checkpoint_seconds: float = 5.0
    callback: Callback | None = None
    show: bool | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        callbacks.check_callback(self.callback)

    def ends(self, number: int, record: Mapping[str, float]) -> bool:
        """Tell the callback of a round, if there is one; whether it ends the run."""
        callback: Any = self.callback
        if callback is None:
            return False
        return bool(callback(number, record) if _takes_two(callback) else callback(Round(number, record)))


def _takes_two(callback: Callable[..., object]) -> bool:
    """Whether a callback has the two arguments of 0.1."""
    try:
        inspect.signature(callback).bind(0, {})
    except TypeError:
        return False
    except ValueError:
        # Nothing is known of some functions written in C; so far all had two.
        return True
    return True


def run_rounds(
    method: str,
    problem: Problem,
    settings: Mapping[str, Any],
    state: dict[str, Tensor],
    rounds: int,
    advance: Callable[[int, Mapping[str, float] | None], Mapping[str, float]],
    control: Control,
) -> tuple[Trace, float]:
    """``recorded_rounds`` of a run on a problem: ``settings`` tell it apart from others beside what the problem is."""
    identity = identify(method, problem, settings, control.seed)
    return recorded_rounds(method, identity, problem.x.device, state, rounds, advance, control)


def recorded_rounds(
    method: str,
    identity: Mapping[str, Any],
    device: torch.device,
    state: dict[str, Tensor],
    rounds: int,
    advance: Callable[[int, Mapping[str, float] | None], Mapping[str, float]],
    control: Control,
) -> tuple[Trace, float]:
    """``advance(round, record before)`` for each round that is left; returns the trace and the seconds of all rounds.

    ``identity``: all that decides the outcome, as plain values; a checkpoint of another run is refused. ``state`` holds
    everything that changes, as tensors that ``advance`` writes to in place; a checkpoint is its content and the
    records, so a method must draw what is random from streams that depend on seed and round only (``stream``,
    ``device_stream``). A record with a number that is not finite stops the run, and so do values of the state that are
    not. A run that its callback ended does not go on if the callback says the same again of the last record.
    """
    path = None if control.checkpoint is None else Path(control.checkpoint)
    records: list[Mapping[str, float]] = []
    if path is not None:
        if path.exists():
            records = _load(path, identity, state)
        else:
            check_writable(path)
    earlier = sum(record["seconds"] for record in records)
    begun = written = time.perf_counter()
    with progress(method, rounds, show=control.show) as bar, own_global_state(device):
        ended = False
        if records:
            bar.advance(len(records))
            ended = control.ends(len(records) - 1, records[-1])
        for number in range(rounds if ended else len(records), rounds):
            since = time.perf_counter()
            before = records[-1] if records else None
            record = dict(advance(number, before))
            _require_finite(record, before or {}, state, method, number)
            records.append(record | {"seconds": time.perf_counter() - since})
            name, value = next(iter(record.items()))
            bar.advance(note=f"{name} {value:.5g}")
            stop = control.ends(number, records[-1])
            last = number == rounds - 1 or stop
            if path is not None and (last or time.perf_counter() - written >= control.checkpoint_seconds):
                write_sealed(path, KEY, FORMAT, state, {"run": identity, "records": records})
                written = time.perf_counter()
            if stop:
                break
    return Trace(records), earlier + time.perf_counter() - begun


def identify(method: str, problem: Problem, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Everything that decides the outcome of a run apart from machine and software, as plain values."""
    total = 0
    for tensor in problem.layout.fixed.values():
        total = checksum(tensor, total)
    return {
        "method": method,
        "seed": seed,
        "likelihood": _lasting(repr(problem.likelihood)),
        CLOSE: _log_likelihoods(problem),
        "prior": _prior_name(problem),
        "temperature": problem.temperature,
        "parameters": {name: list(shape) for name, shape in problem.layout.shapes.items()},
        "model structure": _lasting(repr(problem.model)),
        "initial weights": f"checksum {checksum(problem.start, total):08x}",
        "x": f"{kind(problem.x)} checksum {checksum(problem.x):08x}",
        "y": f"{kind(problem.y)} checksum {checksum(problem.y):08x}",
        **settings,
    }


def _lasting(text: str) -> str:
    """Without addresses, as of lambdas, which change from one process to the next."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)


def _log_likelihoods(problem: Problem) -> list[float]:
    """Of a few points at the first weights and at others: what the network and the likelihood compute, not say."""
    x, y = problem.x[:8], problem.y[:8]
    pattern = torch.linspace(-1, 1, problem.layout.size, dtype=problem.start.dtype, device=problem.start.device)
    with torch.no_grad():
        return [float(problem.log_likelihood(flat, x, y)) for flat in (problem.start, problem.start + 0.1 * pattern)]


def _close(there: Any, here: Any) -> bool:
    """Equal up to what rounding changes from one number of threads to another."""
    if not isinstance(there, list) or len(there) != len(here):
        return False
    return all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(there, here, strict=True))


def _prior_name(problem: Problem) -> str:
    if problem.prior_moments() is not None:
        return repr(problem.prior)
    # A function has no name that lasts; its values at two places tell it apart.
    values = [float(problem.log_prior(flat)) for flat in (problem.start, torch.ones_like(problem.start))]
    return f"{type(problem.prior).__name__} {values[0]:.8g} {values[1]:.8g}"


def device_stream(purpose: str, seed: int, number: int, like: Tensor) -> torch.Generator:
    """A fresh generator for one round, on the device of ``like``: noise of many weights is drawn where it is needed."""
    return torch.Generator(like.device).manual_seed(stream_seed(purpose, seed, number))


def epoch_batches(problem: Problem, batch_size: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The data in random order, once, in batches; all of it as it stands if one batch holds it."""
    if batch_size >= problem.count:
        yield problem.x, problem.y
        return
    order = torch.randperm(problem.count, generator=stream("order", seed, epoch), device="cpu").to(problem.x.device)
    for picked in torch.split(order, batch_size):
        yield problem.x.index_select(0, picked), problem.y.index_select(0, picked)


def require_finite_losses(losses: Tensor, before: float | None, epoch: int, advice: str) -> None:
    """Raise at the first loss of an epoch's steps (n,) that is not finite, or has blown up.

    Blown up is a loss ``BLOW_UP`` times that of the epoch before, or of the run's first step: no descent comes back.
    """
    values = losses.double().cpu()
    reference = float(values[0]) if before is None else before
    limit = BLOW_UP * (1 + abs(reference)) if math.isfinite(reference) else math.inf
    fine = values.isfinite() & (values <= limit)
    if not bool(fine.all()):
        at = int(fine.logical_not().nonzero()[0])
        last = float(values[at - 1]) if at else before
        known = "there was no finite value before" if last is None else f"the last finite value was {last:.6g}"
        place = f"epoch {epoch + 1}, step {at + 1} of {len(values)}"
        raise DivergenceError(f"the loss is {float(values[at]):.6g} in {place}; {known}; {advice}")


def _require_finite(
    record: Mapping[str, float], before: Mapping[str, float], state: Mapping[str, Tensor], method: str, number: int
) -> None:
    advice = "a lower learning rate may help"
    for name, value in record.items():
        if not math.isfinite(value):
            known = f"the last finite value was {before[name]:.6g}" if name in before else "there was none before"
            raise DivergenceError(f"{method}: {name} is {value} in round {number + 1}; {known}; {advice}")
    # The last step of a round may break the weights after a finite loss.
    if "values" in state and not bool(state["values"].isfinite().all()):
        raise DivergenceError(f"{method}: weights are no longer finite at the end of round {number + 1}; {advice}")


def _load(path: Path, identity: Mapping[str, Any], state: dict[str, Tensor]) -> list[Mapping[str, float]]:
    tensors, content = read_sealed(path, KEY, FORMAT)
    try:
        there = content["run"]
        wrong = [
            f"{name} is {there.get(name)!r} there and {identity.get(name)!r} here"
            for name in dict.fromkeys([*identity, *there])
            if not (_close if name == CLOSE else operator.eq)(there.get(name), identity.get(name))
        ]
        if wrong:
            raise InputError(f"checkpoint {path} belongs to another run: {'; '.join(wrong[:3])}")
        with torch.no_grad():
            for name, tensor in state.items():
                # Mean-field runs once counted the steps of each parameter, all alike.
                tensor.copy_(tensors[name].reshape(-1)[:1] if name == "step" else tensors[name])
        records: list[Mapping[str, float]] = content["records"]
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        # Whole, and yet not what was written here: a tensor is missing or of another shape.
        raise InputError(f"checkpoint {path} is damaged: {' '.join(repr(error).split())}") from error
    return records
