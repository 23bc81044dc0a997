"""The two datasets inside scikit-learn: what a fresh machine has without a download.

Neither has an official test part: a fifth of the examples, drawn with a seed and stratified by label, is held out.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coset.data._raw import Raw
from coset.data.splitting import partition

TEST_FRACTION = 0.2


def read_digits(seed: int) -> Raw:
    """1,797 images of handwritten digits, 8×8 with 17 grey values."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return _cut(bunch.images.astype(np.uint8)[:, None], bunch.target, seed, scale=16.0)


def read_breast_cancer(seed: int) -> Raw:
    """569 tumours with 30 features each."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    return _cut(bunch.data, bunch.target, seed, scale=1.0)


def _cut(x: NDArray[Any], y: NDArray[np.int64], seed: int, scale: float) -> Raw:
    kept, held_out = partition(torch.from_numpy(y), round(TEST_FRACTION * len(y)), seed=seed)
    train, test = kept.numpy(), held_out.numpy()
    return Raw(x[train], y[train], x[test], y[test], scale=scale)
