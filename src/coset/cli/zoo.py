"""``coset zoo``: train, info, evaluate, align, canonicalize, export, import."""

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

import coset.cli.options as given
from coset.cli.printing import print_json, show_table

if TYPE_CHECKING:
    from coset.zoo import Zoo

zoo_app = typer.Typer(help="Zoos: many trained networks in a folder.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a zoo.")]
Out = Annotated[Path, typer.Option("-o", "--out", metavar="OUT", help="A new folder for the zoo.")]
Reference = Annotated[
    int | None, typer.Option(metavar="N", help="The number of the network that the others are brought to.")
]


@zoo_app.command("train")
def zoo_train(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="Models, data, recipes and seeds.")],
    out: Annotated[Path, typer.Option("-o", "--out", metavar="DIR", help="The folder of the zoo, new or begun.")],
    workers: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many processes, each with one thread.")
    ] = None,
    as_json: given.Json = False,
) -> None:
    """Train all networks of a specification; the same command goes on where it was stopped.

    \b
    coset zoo train spec.toml -o zoo --workers 2
    """
    from coset.zoo import train_zoo

    _tell(train_zoo(spec, out, workers=workers), as_json)


@zoo_app.command("info")
def zoo_info(folder: Folder, as_json: given.Json = False) -> None:
    """Say what a zoo has, after all weights were compared with their checksums."""
    from coset.zoo import open_zoo

    _tell(open_zoo(folder), as_json)


@zoo_app.command("evaluate")
def zoo_evaluate(
    folder: Folder,
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="PART", help="train, validation or test; may be repeated [default: all]."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="Data of `coset data list`, for networks trained elsewhere.")
    ] = None,
    loss: Annotated[str | None, typer.Option(metavar="NAME", help="The loss [default: that of the recipe].")] = None,
    as_json: given.Json = False,
) -> None:
    """Measure loss and accuracy of every network, and keep them in the index."""
    from coset.zoo import evaluate_zoo

    options: dict[str, Any] = {"parts": part} if part else {}
    _tell(evaluate_zoo(folder, data=data, loss=loss, **options), as_json)


@zoo_app.command("align")
def zoo_align(
    folder: Folder,
    out: Out,
    reference: Reference = None,
    symmetry: given.SymmetryFile = None,
    method: given.Method = "weights",
    as_json: given.Json = False,
) -> None:
    """Align all networks to one of them, by default the first that can be used."""
    from coset.symmetry import Symmetry
    from coset.zoo import align_zoo, open_zoo

    known = None if symmetry is None else Symmetry.load(symmetry)
    _tell(align_zoo(open_zoo(folder), out, reference=reference, symmetry=known, method=method), as_json)


@zoo_app.command("canonicalize")
def zoo_canonicalize(
    folder: Folder,
    out: Out,
    reference: Reference = None,
    symmetry: given.SymmetryFile = None,
    bias: Annotated[
        str, typer.Option(metavar="WHERE", help="Biases: outside of the norm of a unit, or inside.")
    ] = "outside",
    classifier: Annotated[
        bool,
        typer.Option("--classifier", help="Bring the last layer to norm √C: labels stay, probabilities not."),
    ] = False,
    as_json: given.Json = False,
) -> None:
    """Bring all networks to their canonical form; with --reference units are ordered as those of its form."""
    from coset.symmetry import Symmetry
    from coset.zoo import canonicalize_zoo, open_zoo

    known = None if symmetry is None else Symmetry.load(symmetry)
    options: dict[str, Any] = {"bias": bias, "classifier": classifier}
    _tell(canonicalize_zoo(open_zoo(folder), out, reference=reference, symmetry=known, **options), as_json)


@zoo_app.command("export")
def zoo_export(
    folder: Folder,
    out: Annotated[
        Path,
        typer.Option("-o", "--out", metavar="OUT", help="A .csv, .npz, .h5 or .safetensors file, or a new folder."),
    ],
    as_json: given.Json = False,
) -> None:
    """Write the table, or the weights of all networks that can be used, for other programs."""
    from coset.zoo import export_zoo, open_zoo

    files = [str(file) for file in export_zoo(open_zoo(folder), out)]
    if as_json:
        print_json({"files": files})
    else:
        print(f"written: {files[0]}{f' and {len(files) - 1} more' if len(files) > 1 else ''}")


@zoo_app.command("import")
def zoo_import(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A folder of checkpoints, or an .npz or .h5 file.")],
    out: Out,
    model: given.Model,
    option: given.FactoryOptions = None,
    name: Annotated[
        list[str] | None, typer.Option(metavar="OURS=THEIRS", help="The name there of a parameter; may be repeated.")
    ] = None,
    key: given.Key = None,
    strip_prefix: given.PrefixToStrip = "",
    as_json: given.Json = False,
) -> None:
    """Make a zoo of networks that others trained, all of one model."""
    from coset.errors import InputError
    from coset.zoo import import_zoo

    names = {}
    for pair in name or ():
        ours, equals, theirs = pair.partition("=")
        if not equals or not ours or not theirs:
            raise InputError(f"--name takes OURS=THEIRS, found '{pair}'")
        names[ours] = theirs
    chosen = given.parse_pairs("--option", option)
    zoo = import_zoo(source, out, model=model, options=chosen, names=names, key=key, strip_prefix=strip_prefix)
    _tell(zoo, as_json)


def _tell(zoo: "Zoo", as_json: bool) -> None:
    rows, problems = zoo.rows(), zoo.problems
    if as_json:
        about = {"folder": str(zoo.folder), "networks": len(zoo), "usable": len(zoo.indices)}
        print_json({**about, "snapshots": list(zoo.snapshots), "made": zoo.content["made"], "rows": rows})
        return
    print(zoo)
    print(f"{len(zoo.indices)} can be used; snapshots after steps: {', '.join(map(str, zoo.snapshots)) or 'none'}")
    columns = [n for n in dict.fromkeys(n for row in rows for n in row) if _numbers(rows, n)]
    table = []
    for name in columns:
        values = sorted(row[name] for row in rows if row.get(name) is not None and not row["problem"])
        table.append([name, *(f"{value:.6g}" for value in (values[0], median(values), values[-1]))])
    if table:
        show_table(["", "least", "median", "most"], table, right=[1, 2, 3])
    for note in zoo.content["made"].get("notes", ()):
        print(f"note: {note}")
    for index, problem in list(problems.items())[:10]:
        print(f"note: network {index} is left out: {problem}")
    if len(problems) > 10:
        print(f"note: and {len(problems) - 10} more are left out")


def _numbers(rows: list[dict[str, Any]], name: str) -> bool:
    found = [row[name] for row in rows if row.get(name) is not None and not row["problem"]]
    return name not in ("index", "architecture") and bool(found) and all(isinstance(v, int | float) for v in found)
