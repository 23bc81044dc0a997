"""Damaged files of every format: each is refused in one line that names it, or read as what it was.

A case is one file with one to three kinds of damage. What is not allowed: any other exception, a message of several
lines or without the file, content other than the original where there is a checksum, a wait of ``HANG`` seconds, more
than ``MEMORY`` bytes, the end of the process. Case n has the seed ``seed + n``, which alone decides what is done.
"""

import multiprocessing
import os
import random
import resource
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, ForkProcess
from pathlib import Path
from typing import Any

import torch

from coset.errors import InputError
from fuzz.formats import Format, formats
from fuzz.mutations import damaged

HANG = 10.0
MEMORY = 300_000_000
SHOWN = 20
"""Failures that are printed in full."""

REFUSED, UNCHANGED, OTHER = "refused", "unchanged", "other content without a checksum"


def run(seconds: float, seed: int) -> bool:
    """Read damaged files for so long, at least one; print what came of them, and return whether all went well."""
    began = time.perf_counter()
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        originals = Path(folder) / "originals"
        originals.mkdir()
        known = formats(originals)
        counts, failures = _all(known, Path(folder), time.perf_counter() + seconds, seed)
    for failure in failures[:SHOWN]:
        print(failure)
    if len(failures) > SHOWN:
        print(f"… and {len(failures) - SHOWN} more failures")
    print(
        f"files: {sum(counts.values()) + len(failures):,} cases of {len(known)} formats from seed {seed}: "
        f"{counts[REFUSED]:,} refused, {counts[UNCHANGED]:,} unchanged, {counts[OTHER]:,} {OTHER}, "
        f"{len(failures)} failures, {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return not failures


def _all(known: Sequence[Format], folder: Path, end: float, seed: int) -> tuple[Counter[str], list[str]]:
    """Cases in a process of their own, followed by another one where it hangs or dies."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    context: ForkContext = multiprocessing.get_context("fork")
    number = 0
    while number == 0 or time.perf_counter() < end:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(known, folder, end, seed, number, theirs))
        process.start()
        theirs.close()
        number, why = _follow(process, ours, number, counts, failures)
        if why:
            failures.append(f"seed {seed + number}: {why} {_again(seed + number)}")
        number += 1
    return counts, failures


def _follow(
    process: ForkProcess, ours: Connection, number: int, counts: Counter[str], failures: list[str]
) -> tuple[int, str]:
    """Take what the process tells until it ends: the last case that it began, and why it did not end by itself."""
    ended = False
    try:
        while True:
            if not ours.poll(HANG):
                process.kill()
                return number, f"no answer within {HANG:.0f} s"
            number, what, failure = ours.recv()
            if what == "end":
                ended = True
            elif failure:
                failures.append(failure)
            elif what:
                counts[what] += 1
    except EOFError:
        process.join()
        return number, "" if ended else f"the process ended with code {process.exitcode}"
    finally:
        process.join()
        ours.close()


def _work(known: Sequence[Format], folder: Path, end: float, seed: int, number: int, theirs: Connection) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _limit_memory()
    while True:
        theirs.send((number, "", ""))
        what, failure = case(known, folder / "case", seed + number)
        theirs.send((number, what, failure))
        number += 1
        if time.perf_counter() >= end:
            theirs.send((number, "end", ""))
            return


def _limit_memory() -> None:
    """Spare the machine: what asks for gigabytes is refused them."""
    pages = Path("/proc/self/statm")
    if pages.exists():
        used = int(pages.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 4_000_000_000, resource.RLIM_INFINITY))


def case(known: Sequence[Format], folder: Path, seed: int) -> tuple[str, str]:
    """One case: what became of it, or the failure in words."""
    rng = random.Random(seed)
    form = rng.choice(known)
    files = dict(form.files)
    name = rng.choice(list(files))
    crafted = False
    whole = form.inside and rng.random() < 0.5
    content = rng.choice(form.inside)(rng, files[name]) if whole else damaged(rng, files[name])
    place = name
    if whole and form.craft is not None and rng.random() < 0.6:
        try:
            place, content = form.craft(name, content)
            crafted = True
        except Exception:  # it is damaged beyond that
            place = name
    del files[name]
    shutil.rmtree(folder, ignore_errors=True)
    for path, bytes_ in {**files, place: content}.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(bytes_)
    before = _peak()
    what, why = _outcome(form, folder, crafted)
    if _peak() - before > MEMORY:
        what, why = "", f"{(_peak() - before) / 1e6:.0f} MB of memory were used"
    return what, why and f"seed {seed}: {form.name}, {place}{', crafted' if crafted else ''}: {why} {_again(seed)}"


def _outcome(form: Format, folder: Path, crafted: bool) -> tuple[str, str]:
    try:
        found = form.read(folder)
    except InputError as error:
        message = str(error)
        if len(message.splitlines()) != 1:
            return "", f"a message of {len(message.splitlines())} lines: {message!r}"
        if not any(Path(name).name in message for name in form.files) and str(folder) not in message:
            return "", f"a message that does not name the file: {message!r}"
        return REFUSED, ""
    # Whatever else gets out is a failure, be it an exit.
    except BaseException as error:
        return "", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if repr(found) == repr(_original(form, folder)):
        return UNCHANGED, ""
    if form.sealed and not crafted:
        return "", "other content was read in spite of its checksum"
    return OTHER, ""


_originals: dict[str, Any] = {}


def _original(form: Format, folder: Path) -> Any:
    """What the original says, read once."""
    if form.name not in _originals:
        place = folder.with_name("original")
        shutil.rmtree(place, ignore_errors=True)
        for path, content in form.files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(content)
        _originals[form.name] = form.read(place)
    return _originals[form.name]


def _peak() -> int:
    """The most memory that the process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _again(seed: int) -> str:
    return f"(again: ./dev fuzz files --minutes 0 --seed {seed})"
