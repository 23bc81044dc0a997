"""A small zoo, trained once."""

import pytest
from small_zoos import small

from coset.zoo import train_zoo


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a small zoo; to be copied by tests that change it."""
    folder = tmp_path_factory.mktemp("zoo") / "zoo"
    train_zoo(small(snapshots={"steps": [0, 3]}), folder)
    return folder
