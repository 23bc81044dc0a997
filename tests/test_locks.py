"""A lock that cannot be made is one line that names it."""

import pytest

from coset._files.locks import locked
from coset.errors import InputError


def test_a_lock_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"the lock .*file/inner.lock cannot be made: "),
        locked(tmp_path / "file" / "inner.lock", "an entry"),
    ):
        pass


def test_a_lock_with_a_name_that_no_disk_takes(tmp_path):
    with pytest.raises(InputError, match="cannot be made: File name too long"), locked(tmp_path / ("x" * 300), "it"):
        pass
