"""From the files of a dataset to its arrays: each file read once, its content compared with what was published."""

import functools
import hashlib
from pathlib import Path

import numpy as np

from coset.data._content import checksum, verify
from coset.data._folders import fetch_command
from coset.data._plain import read_plain
from coset.data._raw import Raw
from coset.data.catalog import Entry
from coset.errors import InputError


def read_published(entry: Entry, folder: Path, variant: int, *, compare: bool = True) -> tuple[Raw, str]:
    """The arrays of a dataset with files in ``folder``, and the checksums of its parts in one string.

    Content other than published is an error that says which command replaces it; without ``compare`` it is read.
    """
    # Checksums and values come from the same bytes, which are decompressed once.
    read = functools.cache(read_plain)
    if compare:
        try:
            sums = [verify(part, folder, read) for part in entry.parts]
        except InputError as error:
            raise InputError(f"{error}; run: {fetch_command(entry, folder)}") from error
    else:
        sums = [checksum(part, folder, read) for part in entry.parts]
    return entry.read(folder, variant, read), " ".join(sums)


def read_embedded(entry: Entry, variant: int) -> tuple[Raw, str]:
    """The arrays of a dataset inside scikit-learn, and their checksum."""
    raw = entry.read(Path(), variant, read_plain)
    digest = hashlib.sha256()
    for array in (raw.x_train, raw.y_train, raw.x_test, raw.y_test):
        # Little-endian bytes, so that the machine does not matter.
        portable = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        digest.update(f"{portable.dtype.str} {portable.shape}\n".encode())
        digest.update(portable.data)
    return raw, digest.hexdigest()
