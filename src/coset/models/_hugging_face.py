"""Models of a Hugging Face folder, as plain modules of one tensor: from_pretrained, without code from the folder."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from coset.errors import InputError, one_line

PREFIX = "hf:"
LENGTH = 16
"""Tokens of an example input."""


def from_hugging_face(name: str, **options: Any) -> nn.Module:
    """``hf:FOLDER``, or ``hf:NAME`` of a model in the local cache: the architecture its configuration names.

    Weights, names, dtype and tied weights are those of the folder. The result takes one tensor (tokens (N, T), images
    (N, C, H, W), sound (N, T)) and gives one, the logits or the last hidden state; names are unchanged. ``options``
    change the configuration. Nothing is downloaded, and code of a folder is never run.
    """
    place = name.removeprefix(PREFIX)
    try:
        import transformers
    except ImportError as error:
        raise InputError(f"model {name!r} needs the package transformers: pip install 'coset[hf]'") from error
    if not Path(place).is_dir() and (place.startswith((".", "/", "~")) or Path(place).exists()):
        raise InputError(f"model {name!r}: {place} is no folder; expected one that save_pretrained wrote")
    quiet: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(place, **quiet, **options)
        kind = _architecture(transformers, config, name)
        with _quiet(transformers.utils.logging):
            model: nn.Module = kind.from_pretrained(place, config=config, dtype="auto", local_files_only=True)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"model {name!r} cannot be loaded: {type(error).__name__}: {one_line(error, 300)}") from error
    renamed = saved_names(model)
    plain = as_plain(model.eval(), name)
    plain.saved_names = renamed  # type: ignore[assignment]
    return plain


def saved_names(model: nn.Module) -> dict[str, str]:
    """Name in a folder's files → name in the model, where transformers renames tensors when it loads them."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # versions before 5 keep names
        return {}
    # Told by numbers, which only a change of name passes on as they are.
    state = {name: torch.tensor([float(at)]) for at, name in enumerate(model.state_dict())}
    order = list(state)
    try:
        saved: dict[str, Tensor] = revert_weight_conversion(cast(Any, model), dict(state))
    except Exception:  # tensors are joined or cut, too, which numbers do not bear: then names have to fit as they are
        return {}
    found = {name: order[int(tensor)] for name, tensor in saved.items() if tensor.numel() == 1}
    return {name: own for name, own in found.items() if name != own} if len(found) == len(order) else {}


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Without the bars of transformers, which would stand between lines of coset."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _architecture(transformers: Any, config: Any, name: str) -> Any:
    """The class that the configuration names, of transformers itself; the bare model where it names none."""
    named = getattr(config, "architectures", None) or []
    kind = getattr(transformers, named[0], None) if named else transformers.AutoModel
    if kind is None:
        raise InputError(
            f"model {name!r} is a {named[0]}, which this version of transformers does not have; code of the folder is "
            "not run"
        )
    return kind


def as_plain(model: nn.Module, name: str) -> nn.Module:
    """The same module, called with one tensor and answering with one; it tells which inputs it takes."""
    main = getattr(model, "main_input_name", "input_ids")
    config: Any = model.config
    whole: Any = type(model)
    shape, vocabulary = _input_of(config, main, name)
    extra = {}
    taken = inspect.signature(type(model).forward).parameters
    if "use_cache" in taken:
        extra["use_cache"] = False  # keys and values are no output

    def forward(self: Any, x: Tensor) -> Tensor:
        given = {main: x, **extra}
        if getattr(config, "is_encoder_decoder", False):
            given["decoder_input_ids"] = x if vocabulary is not None else _begin(config, x)
        found = whole.forward(self, **given)
        for part in ("logits", "last_hidden_state"):
            if isinstance(getattr(found, part, None), Tensor):
                return torch.as_tensor(getattr(found, part))
        first = found[0]
        assert isinstance(first, Tensor)
        return first

    plain = type(type(model).__name__, (type(model),), {"forward": forward, "__module__": type(model).__module__})
    model.__class__ = plain
    model.input_shape = shape  # type: ignore[assignment]
    if vocabulary is not None:
        model.vocabulary = vocabulary  # type: ignore[assignment]
    return model


def _begin(config: Any, x: Tensor) -> Tensor:
    """A decoder's first token for every example."""
    first = getattr(config, "decoder_start_token_id", None) or 0
    return torch.full((len(x), 1), first, dtype=torch.long, device=x.device)


def _input_of(config: Any, main: str, name: str) -> tuple[tuple[int, ...], int | None]:
    """The shape of one input, and of tokens how many there are."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if main == "input_ids":
        longest = getattr(text, "max_position_embeddings", None) or LENGTH
        # Some tables of positions begin behind the padding token.
        return (min(LENGTH, max(1, longest - 2)),), int(text.vocab_size)
    if main == "pixel_values":
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 224)
        sides = tuple(size) if isinstance(size, list | tuple) else (size, size)
        return (int(getattr(vision, "num_channels", 3)), *(int(side) for side in sides)), None
    if main == "input_values":
        return (8000,), None
    if main == "input_features" and hasattr(config, "num_mel_bins"):
        return (int(config.num_mel_bins), 2 * int(getattr(config, "max_source_positions", 100))), None
    raise InputError(
        f"model {name!r} takes {main}, of which nothing is known; give the shape of its inputs with --input"
    )
