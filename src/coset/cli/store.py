"""``coset store``: list, prune."""

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from coset.cli.options import Json, StoreFolder
from coset.cli.printing import print_json, show_table
from coset.errors import InputError

store_app = typer.Typer(help="The store of trained networks that studies share.", no_args_is_help=True)


@store_app.command("list")
def store_list(
    store: StoreFolder = None,
    check: Annotated[bool, typer.Option("--check", help="Verify the checksum of every entry.")] = False,
    as_json: Json = False,
) -> None:
    """List the trained networks in the store."""
    from coset.store import Store

    rows = Store(store).entries(check=check)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    show_table(
        ["key", "kind", "made", "MB", "problem"],
        [[r.key[:12], r.kind or "", str(r.created or ""), f"{r.size / 1e6:.2f}", r.problem] for r in rows],
        f"{len(rows)} entries, {sum(row.size for row in rows) / 1e6:.1f} MB",
    )


@store_app.command("prune")
def store_prune(
    store: StoreFolder = None,
    kind: Annotated[str | None, typer.Option(help="Only entries of this kind.")] = None,
    older_than: Annotated[float | None, typer.Option(help="Only entries older than so many days.")] = None,
    keep: Annotated[int | None, typer.Option(help="Spare the newest so many.")] = None,
    unreadable: Annotated[bool, typer.Option("--unreadable", help="Remove damaged entries too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: Json = False,
) -> None:
    """Remove entries of the store, and what interrupted writes left behind."""
    from coset.store import Store

    try:
        age = None if older_than is None else timedelta(days=older_than)
    except (ValueError, OverflowError) as error:
        raise InputError(f"--older-than is {older_than}, expected a number of days") from error
    pruned = Store(store).prune(kind=kind, older_than=age, keep=keep, unreadable=unreadable, dry_run=dry_run)
    counts = {
        "entries": len(pruned.entries),
        "leftovers": len(pruned.leftovers),
        "bytes": pruned.size,
        "dry_run": dry_run,
    }
    if as_json:
        print_json(counts)
        return
    verb = "would remove" if dry_run else "removed"
    print(f"{verb} {counts['entries']} entries and {counts['leftovers']} leftovers, {pruned.size / 1e6:.1f} MB")
