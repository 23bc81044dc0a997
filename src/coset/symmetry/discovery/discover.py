"""``discover``: trace, infer, verify."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from coset.errors import InputError
from coset.running import call_with, copies_of
from coset.symmetry.discovery.assembly import assemble
from coset.symmetry.discovery.beyond_monomial import confirmed, proposed
from coset.symmetry.discovery.called_modules import called_modules, connected
from coset.symmetry.discovery.evaluation import evaluate
from coset.symmetry.discovery.examples import called_with, longer_examples
from coset.symmetry.discovery.exporting import export, sources_forgotten
from coset.symmetry.discovery.influence import Standing, to_be_felt
from coset.symmetry.discovery.remarks import not_read, read_one_by_one, reported, smaller, some
from coset.symmetry.discovery.terms import Atom, leave_unread
from coset.symmetry.discovery.tracing import Tracing, trace
from coset.symmetry.discovery.verification import generic_influence
from coset.symmetry.discovery.verification import verify as verified
from coset.symmetry.incidence import block_count
from coset.symmetry.preserving import remember
from coset.symmetry.symmetry import Symmetry


@sources_forgotten()
def discover(
    model: nn.Module,
    example_inputs: Any,
    *,
    kwargs: Mapping[str, Any] | None = None,
    verify: bool = True,
    strict: bool = False,
    fixed_buffers: bool | Collection[str] = False,
) -> Symmetry:
    """The symmetry group of a model nobody has described: all g that are found with f(g·θ, x) = f(θ, x).

    The model is exported to a graph of ATen operations. Dimensions are unified through it (what remains unified and
    unpinned is a class of interchangeable units); scales and signs are solved as a linear system, as physical units
    are. Classes that only linear maps and norms see are mixed by matrices (``sym.continuous``), and units in front of
    sin or a sigmoid turn (``sym.turns``).

    ``example_inputs``: a tensor, a tuple of positional arguments, or a mapping of keyword arguments (what a tokenizer
    returns); None where all of them are ``kwargs``. With ``verify`` the result is checked in float64 on random elements
    before it is returned: a group that fails is an error. Classes whose moves no output notices, on the example and on
    others that are tried, are told in ``sym.unverified``; with ``strict`` they are an error, too. ``fixed_buffers``:
    True, or the names of buffers that stay as they are (masks of pruning, grids of splines).

    The group is that of the function on inputs of these shapes: a recurrence unrolled over one step, or an image of one
    pixel, may have more symmetry than on longer or larger inputs. Entries of parameters that the example does not read
    stay fixed, and ``sym.notes`` names them.

    ``sym.pinned`` lists where what is known of operations ended, and nothing was assumed to pass.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}; expected an nn.Module")
    if strict and not verify:
        raise InputError("strict asks for a verification, which verify=False leaves out")
    _check_mode(model)
    inputs, keywords = called_with(example_inputs, kwargs)
    state = model.state_dict(keep_vars=True)
    movable = {name: tensor for name, tensor in state.items() if isinstance(tensor, Tensor)}
    if odd := [name for name, tensor in movable.items() if tensor.layout != torch.strided]:
        raise InputError(f"'{odd[0]}' is a tensor of layout {movable[odd[0]].layout}; expected dense ones")
    fixed = _fixed(model, movable, fixed_buffers)
    valued = not any(tensor.is_meta for tensor in movable.values())
    if verify and not valued:
        raise InputError("the model is on the meta device and has no values: nothing can be verified; use verify=False")
    program, keywords, remark = export(model, inputs, keywords)
    tracing = trace(program, movable, fixed)
    leaves = tree_leaves((inputs, keywords))
    sym, atoms, expected = _read(tracing, movable, program, leaves) if valued else (*assemble(tracing, movable), None)
    buffers = tuple(name for name, _ in model.named_buffers(remove_duplicate=False) if name not in movable)
    notes = (*remark, *sym.notes, *read_one_by_one(tracing), *smaller(tracing))
    homes = {
        node: str(spec.target)
        for node, spec in zip(program.graph.nodes, program.graph_signature.input_specs, strict=False)
        if spec.target is not None
    }
    layers, ends = connected(program.graph, called_modules(program.graph), homes)
    graph = replace(sym.graph, layers=layers, ends=ends)
    sym = sym.annotated(pinned=reported(tracing), notes=notes, unsaved=buffers, graph=graph)
    proposal = proposed(sym, tracing, atoms, program, movable, fixed, valued=valued)
    if not verify:
        if not valued:
            return proposal.unverified(sym)
        return _with_handed_on(proposal.derived(sym, program, movable, leaves), model, inputs, keywords)
    astray: set[str] = set()
    missing = verified(sym, program, movable, leaves, expected=expected, astray=astray)
    if astray:
        told = sorted(astray & graph.activations.keys())
        sym = sym.annotated(
            graph=graph.with_tensors({name: item for name, item in graph.tensors.items() if name not in astray}),
            notes=(*sym.notes, *(f"the output of '{name}' does not move as its layer seems to" for name in told)),
        )
    for longer in longer_examples(inputs, keywords) if missing else ():
        try:
            missing &= _on_others(sym, model, movable, longer, missing)
        except InputError as error:
            # The group is that of inputs of these shapes; that others have less is worth a word.
            note = f"on an example that is twice as long the group is smaller: {error}"
            sym = sym.annotated(notes=(*sym.notes, note))
    lines = tuple(_unnoticed(sym, missing))
    if strict and lines:
        unseen = len({part.name for part in missing})
        raise InputError(f"{unseen} classes cannot be verified on these inputs: {'; '.join(lines[:4])}")
    sym = _with_handed_on(sym.annotated(unverified=lines), model, inputs, keywords)
    remember(sym, model)
    sym = confirmed(sym, proposal, program, movable, leaves, {part.name for part in missing})
    remember(sym, model)
    return sym


def _read(
    tracing: Tracing, movable: Mapping[str, Tensor], program: torch.export.ExportedProgram, inputs: Sequence[Any]
) -> tuple[Symmetry, dict[str, Atom], set[Standing]]:
    """The symmetry without classes of which the outputs depend on no entry, with the atom of each class; and on which
    classes they can depend.
    """
    sym, atoms = assemble(tracing, movable)
    felt_by = generic_influence(sym, program, movable, inputs)
    read = {part.name for part, value in felt_by.items() if value > 0}
    # A class that follows another is where that one is.
    read |= {name for name, item in sym.classes.items() if item.follows in read}
    unread = [name for name in sym.classes if name not in read and name in atoms]
    if not unread:
        return sym, atoms, to_be_felt(felt_by)
    remarks = not_read(sym, unread)
    for name in unread:
        leave_unread(atoms[name])
    sym, atoms = assemble(tracing, movable)
    felt_by = generic_influence(sym, program, movable, inputs)
    return sym.annotated(notes=(*remarks, *sym.notes)), atoms, to_be_felt(felt_by)


def _with_handed_on(sym: Symmetry, model: nn.Module, inputs: tuple[Any, ...], keywords: Mapping[str, Any]) -> Symmetry:
    """The symmetry with outputs of modules that only hand on what another one gave, which no operation shows."""
    known = sym.graph.activations
    silent = [name for name, part in model.named_modules() if name and name not in known and not list(part.children())]
    if not silent:
        return sym
    given: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def see(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                given[name] = output

        return see

    hooks = [
        part.register_forward_hook(keep(name))
        for name, part in model.named_modules()
        if name in known or name in silent
    ]
    # Copies: a forward pass may write into its inputs, its buffers and even its weights.
    given_in, given_by_name = tree_map_only(Tensor, torch.clone, (inputs, dict(keywords)))
    try:
        with torch.no_grad():
            call_with(model, copies_of(model), *given_in, **given_by_name)
    except RuntimeError:
        return sym  # what can be exported may have no kernel on this machine
    finally:
        for hook in hooks:
            hook.remove()
    same = {id(given[name]): known[name] for name in known if name in given}
    more = {name: same[id(given[name])] for name in silent if name in given and id(given[name]) in same}
    return sym.annotated(graph=replace(sym.graph, activations={**known, **more}))


def _on_others(
    sym: Symmetry,
    model: nn.Module,
    movable: Mapping[str, Tensor],
    example: tuple[tuple[Any, ...], dict[str, Any]],
    missing: set[Standing],
) -> set[Standing]:
    """What is still not noticed on an example of another length; all of it where the model does not take that."""
    try:
        program, keywords, _ = export(model, *example)
        leaves = tree_leaves((example[0], keywords))
        evaluate(program, movable, leaves)
    except (InputError, RuntimeError, IndexError):
        return missing
    return verified(sym, program, movable, leaves, expected=missing, elements=1, further=False)


def _unnoticed(sym: Symmetry, missing: set[Standing]) -> list[str]:
    """The classes that are not exercised, each with its parameters, in words; of some blocks, with their numbers."""
    found = []
    for name, item in sym.classes.items():
        by_blocks: dict[tuple[int, ...], list[str]] = {}
        for carrier in sym.parameters:
            blocks = tuple(sorted(part.block for part in missing if part.name == name and part.parameter == carrier))
            if blocks:
                by_blocks.setdefault(blocks, []).append(carrier)
        for blocks, carriers in by_blocks.items():
            what = f"no output notices how it moves {some(carriers, 3)}"
            if len(blocks) < block_count(sym, name):
                what += f" in unit{'s' * (len(blocks) > 1)} {some(blocks, 8)} of '{item.parent}'"
            found.append(f"'{name}': {what}")
    return found


def _fixed(model: nn.Module, movable: Mapping[str, Tensor], wanted: bool | Collection[str]) -> set[str]:
    """The names of buffers that stay as they are."""
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False) if name in movable}
    if isinstance(wanted, bool):
        return buffers if wanted else set()
    if not isinstance(wanted, Collection):
        raise InputError(f"fixed_buffers is {wanted!r}; expected True, False or names of buffers")
    names = {wanted} if isinstance(wanted, str) else set(wanted)
    if unknown := sorted(names - buffers):
        raise InputError(f"fixed_buffers names '{unknown[0]}'; the buffers are: {', '.join(sorted(buffers)) or 'none'}")
    return names


def _check_mode(model: nn.Module) -> None:
    """Dropout and batch statistics make a function random or dependent on its batch: they have to be off."""
    for path, module in model.named_modules():
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            where = f"'{path}'" if path else "the model"
            raise InputError(f"{where} is wrapped in {type(module).__name__}: pass model.module")
        if not module.training:
            continue
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            raise InputError(f"'{path}' drops out at random: the model is in training mode; call model.eval() first")
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise InputError(
                f"'{path}' uses the statistics of the batch: the model is in training mode; call model.eval() first"
            )
