"""Make the table of architectures: ``./dev run python -m fuzz.architectures [NAMES…] [--write]``."""

import argparse
import os

import torch

from coset._files.atomic import write_text
from fuzz.architectures import ARCHITECTURES
from fuzz.architectures.check import check
from fuzz.architectures.table import PAGE, read, render, row, written


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.architectures", description="Groups of architectures of transformers and diffusers."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures [all]")
    parser.add_argument("--write", action="store_true", help=f"put the rows into docs/{PAGE.name}, others stay")
    options = parser.parse_args()
    for name in options.names:
        if name not in ARCHITECTURES:
            parser.error(f"no architecture '{name}'; there are {', '.join(ARCHITECTURES)}")
    torch.set_num_threads(1)
    # Both libraries speak of what they would download, or lack, when they are imported.
    os.environ |= {"TRANSFORMERS_VERBOSITY": "error", "DIFFUSERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    rows, unsound = {}, []
    for name in options.names or ARCHITECTURES:
        finding = check(ARCHITECTURES[name])
        rows[name] = row(name, finding)
        print(rows[name] if rows.keys() - {name} else render(rows), flush=True)
        if not finding.sound:
            unsound.append(f"{name}: {finding.refused or f'outputs change by {finding.change:.1e} of their size'}")
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        known = read(page) | rows
        write_text(PAGE, written(page, {name: known[name] for name in ARCHITECTURES if name in known}))
    raise SystemExit("\n".join(unsound) or None)


if __name__ == "__main__":
    main()
