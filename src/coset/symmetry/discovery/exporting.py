"""A model as a graph of ATen operations, and what no graph can show."""

import inspect
import io
import linecache
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node, graph_module

from coset.errors import InputError


@contextmanager
def sources_forgotten() -> Iterator[None]:
    """Forget the text of graph modules that are made within the block, or the function it decorates.

    They still run; only a traceback through one that lives longer shows no lines of it.
    """
    # No public name clears it; where torch keeps it elsewhere, nothing is done.
    texts: dict[str, str] = getattr(getattr(graph_module, "_loader", None), "eval_cache", {})
    known = set(texts)
    try:
        yield
    finally:
        for name in [name for name in texts if name not in known]:
            texts.pop(name, None)
            linecache.cache.pop(name, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch silent, which logs and prints whole graphs: what goes wrong is told once, by the error that is raised.

    What the model itself writes to the standard error comes through if nothing goes wrong.
    """
    names = [name for name in logging.Logger.manager.loggerDict if name.partition(".")[0] == "torch"]
    loggers = [logging.getLogger(name) for name in ("torch", *names)]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        with redirect_stderr(io.StringIO()) as said:
            yield
        sys.stderr.write(said.getvalue())
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


@contextmanager
def _without_stack_traces() -> Iterator[None]:
    """Keep torch from noting at every operation which lines called it: nobody reads them, and they take a sixth of the
    time.
    """
    # Where torch has no such switch, nothing is done.
    config = getattr(torch.fx, "config", None)
    before = getattr(config, "do_not_emit_stack_traces", None)
    if before is None:
        yield
        return
    try:
        setattr(config, "do_not_emit_stack_traces", True)  # noqa: B010 - older versions of torch do not have it
        yield
    finally:
        setattr(config, "do_not_emit_stack_traces", before)  # noqa: B010


def export(
    model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[torch.export.ExportedProgram, dict[str, Any], tuple[str, ...]]:
    """The model as a graph, with parameters and buffers as inputs and nothing written in place that others see.

    Returns with it the keyword arguments it was called with and remarks: models that fail because they return a cache
    are called without one.
    """
    keywords = dict(kwargs)
    remarks: tuple[str, ...] = ()
    while True:
        try:
            program = _exported(model, inputs, keywords)
            break
        except (Exception, SystemExit) as error:
            if not _may_cache(model, keywords):
                raise InputError(_reason(error, model, inputs, keywords)) from error
            keywords["use_cache"] = False
            remarks = ("the model is called with use_cache=False: with a cache it cannot be exported",)
    _check_deterministic(program.graph_module)
    return program, keywords, remarks


def _exported(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.export.ExportedProgram:
    with warnings.catch_warnings(), _quiet(), _without_stack_traces():
        # Recurrent modules keep a list of their weights beside them; export sees it change and says so.
        warnings.filterwarnings("ignore", message="The tensor attribute")
        # What torch says to itself of its own internals.
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec")
        program = torch.export.export(model, inputs, kwargs, strict=False)
        parts = [part for part in program.graph_module.modules() if isinstance(part, GraphModule)]
        return program.run_decompositions({}) if any(_writes_into_others(part.graph) for part in parts) else program


def _may_cache(model: nn.Module, kwargs: Mapping[str, Any]) -> bool:
    """Whether the model takes ``use_cache`` and nobody has said anything about it."""
    return "use_cache" not in kwargs and "use_cache" in inspect.signature(model.forward).parameters


def _reason(error: BaseException, model: nn.Module, inputs: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Why a model was not exported: its inputs, its control flow, or something else, and in which module."""
    kind = type(model).__name__
    try:
        with torch.no_grad():
            model(*inputs, **kwargs)
    except (Exception, SystemExit) as failure:
        return f"{kind} cannot be called with these example inputs: {first_line(failure)}"
    place = _failing_module(error.__traceback__, model)
    if "data-dependent" in str(error).lower() or "DataDependent" in type(error).__name__:
        return f"the control flow of {place} depends on its data, which no single graph can show: {first_line(error)}"
    return f"torch.export cannot trace {place}: {first_line(error)}"


def first_line(error: BaseException) -> str:
    """What went wrong, without the pages behind it."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _failing_module(traceback: TracebackType | None, model: nn.Module) -> str:
    """The innermost module of the model whose code was running."""
    paths = {id(module): path for path, module in model.named_modules()}
    found = ""
    while traceback is not None:
        found = paths.get(id(traceback.tb_frame.f_locals.get("self")), found)
        traceback = traceback.tb_next
    return f"'{found}' ({type(model.get_submodule(found)).__name__})" if found else type(model).__name__


def _writes_into_others(graph: torch.fx.Graph) -> bool:
    """Whether an operation in place changes a tensor that others see too: a view, or one that is read again."""
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is None or not schema.is_mutable:
            continue
        target = node.args[0]
        maker = getattr(target.target, "_schema", None)
        views = maker is not None and any(item.alias_info is not None for item in maker.returns)
        if len(target.users) > 1 or views or maker is None:
            return True
    return False


def _check_deterministic(module: GraphModule) -> None:
    """Refuse operations that draw random numbers; dropout that is switched off does not."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, GraphModule) else ():
            tags = getattr(node.target, "tags", ())
            if node.users and torch.Tag.nondeterministic_seeded in tags and _draws(node):
                raise InputError(
                    f"{place_of(node)} draws random numbers: with dropout, call model.eval() first; a function that is "
                    "random has no symmetry to verify"
                )


def _draws(node: Node) -> bool:
    """Whether an operation that may draw random numbers does: at a rate above 0 and, if it asks, in training mode."""
    target: Any = node.target
    names = [item.name for item in target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    rates = [given.get(name, 0.0) for name in ("p", "dropout", "dropout_p") if name in names]
    modes = [given.get(name, False) for name in ("train", "training") if name in names]
    return all(modes) and (not rates or any(rates))


def place_of(node: Node) -> str:
    """The operation and the module it belongs to, for people."""
    name = getattr(node.target, "__name__", str(node.target)).partition(".")[0]
    stack = node.meta.get("nn_module_stack") or {}
    path = next((item[0] for item in reversed(list(stack.values()))), "")
    path = path.removeprefix("L['self'].").removeprefix("L['self']")
    return f"{name} in {path}" if path else name
