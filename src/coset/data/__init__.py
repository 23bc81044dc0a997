"""Datasets: found on this machine or fetched, checked, and loaded as tensors."""

from coset.data._checking import Listing, PartReport, Report, available, check, search_folders
from coset.data._dataset import Dataset, Split
from coset.data._fetching import fetch
from coset.data._given import FORMS, given, given_pair
from coset.data._loading import load
from coset.data.catalog import CATALOG
from coset.data.normalization import Normalization
from coset.data.splitting import split, subset

NAMES = tuple(CATALOG)

__all__ = [
    "FORMS",
    "NAMES",
    "Dataset",
    "Listing",
    "Normalization",
    "PartReport",
    "Report",
    "Split",
    "available",
    "check",
    "fetch",
    "given",
    "given_pair",
    "load",
    "search_folders",
    "split",
    "subset",
]
