"""``fit_reader``: train a network that reads networks, by the one training loop of ``coset.train``."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from coset._checks import check_count, check_seed, is_number
from coset._files.sealed import checksum
from coset.errors import InputError
from coset.metanet._groups import Group, Networks, networks
from coset.symmetry import Symmetry
from coset.symmetry.stacks import act_stack, leading, random_stack
from coset.train import Callback, Epoch, Recipe, fit
from coset.train.metrics import evaluation_mode
from coset.train.randomness import stream

AT_ONCE = 256
"""So many networks are read at a time where no gradients are kept."""


@dataclass(frozen=True, eq=False)
class FittedReader:
    """A trained reader in evaluation mode, the ``loss`` it was trained by, and the course of its training.

    ``best_epoch`` is the first with the best validation metrics; None without validation networks.
    """

    reader: nn.Module
    loss: str
    history: tuple[Epoch, ...]
    best_epoch: int | None

    def predict(self, sym: Symmetry, stack: Mapping[str, Tensor], *, at_once: int = AT_ONCE) -> Tensor:
        """What is read of N networks: values or shares (N,) or (N, outputs), or the scores of classes (N, classes).

        Of one network without a leading axis, the same without that axis.
        """
        check_count("at_once", at_once)
        count = leading(sym, stack)
        many = {name: tensor[None] for name, tensor in stack.items()} if count is None else stack
        found = []
        with torch.no_grad(), evaluation_mode(self.reader):
            for start in range(0, count or 1, at_once):
                found.append(self.reader({n: t[start : start + at_once] for n, t in many.items()}, sym=sym))
        outputs = torch.cat(found)
        if self.loss == "shares":
            outputs = outputs.sigmoid()
        if self.loss != "cross-entropy" and outputs.ndim == 2 and outputs.shape[1] == 1:
            outputs = outputs[:, 0]
        return outputs[0] if count is None else outputs


def fit_reader(
    reader: nn.Module,
    groups: "Group | Sequence[Group]",
    recipe: Recipe,
    *,
    seed: int,
    validation: float | Sequence[Group] | None = 0.1,
    patience: int | None = None,
    augment: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 5.0,
    callback: Callback | None = None,
    show: bool | None = None,
) -> FittedReader:
    """Train a copy of ``reader`` to read ``targets`` from networks; the reader itself stays as it is.

    ``groups``: triples (symmetry, stack of N networks, targets (N, …)), one for each architecture. The ``recipe`` is
    one of ``coset.train``, such as AdamW with a warm-up and the schedule "cosine". Its loss is "mse", "cross-entropy"
    (targets are labels), "binary-cross-entropy", or "shares" (targets from 0 to 1, by a sigmoid). ``validation``: this
    share of every group, drawn by ``seed``, or groups of their own; the recipe's ``keep="best"`` and ``patience``, see
    ``coset.train.fit``, look at them. ``checkpoint``, ``callback`` and ``show`` are those of ``fit``, too.

    A reader is called as ``reader(stack, sym=sym)``. If it has ``calibrate(stack, sym=sym)``, this is called with the
    training networks first. If it has ``read(stack, sym=sym)``, the networks are read once, and it is called with some
    of what that gives. ``augment``: in every step each network is moved by a random element of its group.
    """
    check_seed(seed)
    if not isinstance(reader, nn.Module):
        raise InputError(f"reader is a {type(reader).__name__}; expected a torch.nn.Module")
    if recipe.augmentation != "none" or recipe.mixup or recipe.cutmix:
        raise InputError("the recipe moves or mixes images; expected augmentation 'none', mixup 0 and cutmix 0")
    given = networks(groups)
    trained, held_out = _parts(given, validation, seed)
    own = copy.deepcopy(reader)
    if hasattr(own, "calibrate"):
        for group in trained:
            cast(Any, own).calibrate(group.stack, sym=group.sym)
    like = next(own.parameters(), None)
    if like is None:
        raise InputError("reader has no parameters; expected a network that can be trained")
    shelf = _Shelf([*trained, *held_out], None if augment else getattr(own, "read", None))
    model = _Numbered(own, shelf, augment)
    count, total = sum(map(len, trained)), sum(map(len, shelf.groups))
    targets = torch.cat([_columns(group.targets, recipe.loss, like) for group in shelf.groups])
    numbers = torch.arange(total)
    result = fit(
        model,
        numbers[:count],
        targets[:count],
        recipe,
        seed=seed,
        validation=(numbers[count:], targets[count:]) if held_out else None,
        patience=patience,
        checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds,
        callback=callback,
        show=show,
    )
    model.load_state_dict(result.params)
    return FittedReader(own.eval(), recipe.loss, result.history, result.best_epoch)


def _parts(
    given: list[Networks], validation: float | Sequence[Group] | None, seed: int
) -> tuple[list[Networks], list[Networks]]:
    """The networks to train on, and those to validate on."""
    if validation is None:
        return given, []
    if not is_number(validation):
        return given, networks(cast(Sequence[Group], validation))
    if not 0 < validation < 1:
        raise InputError(f"validation is {validation!r}; expected a share between 0 and 1, groups of networks, or None")
    trained, held_out = [], []
    for number, group in enumerate(given):
        order = torch.randperm(len(group), generator=stream(f"validation of group {number}", seed, 0))
        most = max(round(validation * len(group)), 1)
        if most >= len(group):
            raise InputError(f"group {number} has {len(group)} networks, too few to validate on some of them")
        held_out.append(group.take(order[:most]))
        trained.append(group.take(order[most:]))
    return trained, held_out


def _columns(targets: Tensor, loss: str, like: Tensor) -> Tensor:
    """Targets as the losses take them: values of one output as a column, numbers in the type of the reader."""
    if loss == "cross-entropy":
        return targets
    values = targets[:, None] if targets.ndim == 1 else targets
    return values.to(like.dtype) if loss != "binary-cross-entropy" else values


class _Shelf:
    """Networks by number, group after group; ``ready``: what a reader has read of each group, or the stacks."""

    def __init__(self, groups: Sequence[Networks], read: Any) -> None:
        self.groups = groups
        self.starts = torch.tensor([0, *(len(group) for group in groups)]).cumsum(0)
        self.ready: list[Any] | None = None
        if read is not None:
            with torch.no_grad():
                self.ready = [read(group.stack, sym=group.sym) for group in groups]

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Shelf":
        """Itself: copies of a model read the same networks."""
        return self

    def named(self) -> str:
        """Checksum of all weights, and the groups they move under."""
        total = 0
        for group in self.groups:
            for tensor in group.stack.values():
                total = checksum(tensor, total)
        return f"checksum {total:08x}, symmetries {', '.join(group.sym.fingerprint for group in self.groups)}"


class _Numbered(nn.Module):
    """A reader as a network whose inputs are the numbers of networks on a shelf: (B,) to what is read, (B, …)."""

    def __init__(self, reader: nn.Module, shelf: _Shelf, augment: bool) -> None:
        super().__init__()
        self.reader, self.shelf, self.augment = reader, shelf, augment

    def extra_repr(self) -> str:
        """What else makes a run the same run, for checkpoints."""
        return f"{self.shelf.named()}, augment={self.augment}"

    def forward(self, numbers: Tensor) -> Tensor:
        which = torch.bucketize(numbers.cpu(), self.shelf.starts, right=True) - 1
        places, found = [], []
        for group in sorted(set(which.tolist())):
            here = (which == group).nonzero()[:, 0]
            places.append(here)
            found.append(self._read(group, numbers.cpu()[here] - self.shelf.starts[group]))
        outputs = torch.cat(found)
        return outputs[torch.cat(places).argsort().to(outputs.device)]

    def _read(self, group: int, rows: Tensor) -> Tensor:
        """What is read of some networks of a group."""
        own = self.shelf.groups[group]
        if self.shelf.ready is not None:
            outputs: Tensor = self.reader(self.shelf.ready[group][rows], sym=own.sym)
            return outputs
        stack: Mapping[str, Tensor] = own.take(rows).stack
        if self.augment and self.training:
            generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
            stack = act_stack(own.sym, random_stack(own.sym, len(rows), generator), stack)
        moved: Tensor = self.reader(stack, sym=own.sym)
        return moved
