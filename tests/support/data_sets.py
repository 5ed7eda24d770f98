"""Find data sets for tests that are too large for the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DEBIAN = "/usr/share/datasets/fashion-mnist"


def find_fashion_mnist() -> Path:
    """Return the folder with Fashion-MNIST's four files, or skip the test."""
    folder = Path(os.environ.get("FASHION_MNIST") or DEBIAN)
    if not (folder / "train-images-idx3-ubyte.gz").exists():
        pytest.skip(
            f"Fashion-MNIST is not in {folder}: apt install dataset-fashion-mnist, or set "
            "FASHION_MNIST to its folder"
        )
    return folder
