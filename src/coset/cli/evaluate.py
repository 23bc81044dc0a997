"""``coset evaluate``."""

from pathlib import Path
from typing import Annotated

import typer

import coset.cli.options as given
from coset.cli.examples import chosen
from coset.cli.networks import Source, read_networks
from coset.cli.printing import print_json, show_table
from coset.cli.worth import is_labelled, table, worth
from coset.errors import InputError


def evaluate(
    files: Annotated[list[Path], typer.Argument(metavar="A [B …]", help="Weights of one architecture.")],
    model: given.Model,
    data: Annotated[str, typer.Option(metavar="NAME", help="A name from `coset data list`.")],
    option: given.FactoryOptions = None,
    shapes: given.InputShapes = None,
    split: given.DataPart = "train",
    limit: given.Limit = None,
    mean: given.Mean = None,
    std: given.Std = None,
    seed: given.Seed = 0,
    key: given.Key = None,
    strip_prefix: given.PrefixToStrip = "",
    as_json: given.Json = False,
) -> None:
    """Loss and accuracy of networks on the test part of data, of texts perplexity.

    \b
    coset evaluate a.safetensors b.pt --model resnet20 --data cifar10
    coset evaluate merged.safetensors --model transformer --option dim=128 --data tinyshakespeare --limit 250
    """
    choice = chosen(data, split, limit, mean, std, seed)
    if not is_labelled(choice):
        raise InputError(f"--data {data} has inputs alone; expected a name from `coset data list`, with targets")
    networks = read_networks(files, Source(model, option, shapes, None, key, strip_prefix))
    rows = worth(networks, dict(zip(map(str, files), networks.params, strict=True)), choice)
    if as_json:
        print_json({"data": str(choice), "networks": rows})
        return
    columns, cells = table(rows)
    show_table(columns, cells, str(choice), right=set(range(1, len(columns))))
