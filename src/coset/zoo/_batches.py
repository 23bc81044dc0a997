"""The batches of a stack: which examples each network reads in which step, moved and mixed as its recipe says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from coset.train.augment import Motions, mix_inputs, move, partner
from coset.train.loop import Plan, Run, draw_plan
from coset.zoo._stacked import images_inside


@dataclass(frozen=True)
class Batch:
    """What a step reads: inputs (N, B, …) and targets (N, B, …), or (B, …) if ``shared`` by all networks.

    Where examples are mixed, ``weights`` (N,) or () are those of the own targets, the rest those of the partners.
    """

    inputs: Tensor
    targets: Tensor
    shared: bool
    weights: Tensor | None = None

    def mixed(self, value: Callable[[Tensor], Tensor]) -> Tensor:
        """The loss (N,) of targets, or of both targets that are mixed."""
        if self.weights is None:
            return value(self.targets)
        partners = partner(self.targets) if self.shared else self.targets.roll(1, 1)
        return self.weights * value(self.targets) + (1 - self.weights) * value(partners)


@dataclass(frozen=True)
class Plans:
    """All random choices of an epoch, of every network or of all together."""

    runs: Sequence[Run]
    plans: Sequence[Plan]
    order: Tensor
    """(N, examples), or (1, examples) that all share."""
    motions: Motions | None
    """(N, examples, …)"""
    shared: bool
    room: dict[int, Tensor] = field(default_factory=dict)
    """Memory for the inputs of a batch, by their number: what one batch has is overwritten by the next."""

    def batch(self, index: int) -> Batch:
        """What the networks read in one step of the epoch."""
        run = self.runs[0]
        examples = slice(index * run.recipe.batch_size, (index + 1) * run.recipe.batch_size)
        picked = self.order[:, examples]
        # Images that stay as they are come example by example, so that moving the networks inside stays in the cache.
        inside = run.x.ndim == 4 and self.motions is None and all(plan.mixes is None for plan in self.plans)
        flat = (picked.T if inside else picked).reshape(-1)
        # Always into the same memory: fresh pages of large tensors take longer than the copy.
        space = (len(flat), *run.x.shape[1:])
        inputs = torch.index_select(run.x, 0, flat, out=self.room.setdefault(len(flat), run.x.new_empty(space)))
        targets = run.y.index_select(0, picked.reshape(-1))
        if self.motions is not None:
            offsets, flips = self.motions.offsets[:, examples], self.motions.flips[:, examples]
            inputs = move(inputs, Motions(self.motions.reach, offsets.flatten(0, 1), flips.flatten()), 0)
        rows = picked.T.shape if inside else picked.shape
        inputs, targets = inputs.reshape(*rows, *inputs.shape[1:]), targets.reshape(*picked.shape, *targets.shape[1:])
        inputs = inputs.transpose(0, 1) if inside else inputs
        weights = None
        mixes = [plan.mixes[index] for plan in self.plans if plan.mixes is not None]
        if mixes:
            inputs = torch.stack([mix_inputs(own, mix) for own, mix in zip(inputs, mixes, strict=True)])
            weights = torch.tensor([mix.weight for mix in mixes], dtype=inputs.dtype, device=inputs.device)
        if self.shared and inputs.ndim == 5:
            # Grouped convolutions read the images of every network beside its filters: a copy for each is faster.
            inputs, targets = (part.expand(len(self.runs), *part.shape[1:]) for part in (inputs, targets))
            weights = None if weights is None else weights.expand(len(self.runs))
        elif self.shared:
            return Batch(inputs[0], targets[0], True, None if weights is None else weights[0])
        return Batch(images_inside(inputs), targets, False, weights)


def draw_plans(runs: Sequence[Run], epoch: int, *, shared: bool) -> Plans:
    """The choices of one epoch: those of each run, or those of the first for all."""
    plans = [draw_plan(run, epoch) for run in (runs[:1] if shared else runs)]
    motions = [plan.motions for plan in plans if plan.motions is not None]
    together = None
    if motions:
        offsets = torch.stack([one.offsets for one in motions])
        together = Motions(motions[0].reach, offsets, torch.stack([one.flips for one in motions]))
    return Plans(runs, plans, torch.stack([plan.order for plan in plans]), together, shared)
