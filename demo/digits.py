"""The handwritten digits that scikit-learn ships (UCI Optical Recognition of Handwritten Digits, test part).

The file is read where the package keeps it, without importing scikit-learn, whose import costs more than a task here.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from demo.task import refuse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PIXELS = 64
PIXEL_MAX = 16
CLASSES = 10
SPLIT_SEED = 0
TRAIN_ROWS = 1197
VALIDATION_ROWS = 300


def _file() -> Path:
    given = os.environ.get("DIGITS_CSV")
    if given:
        return Path(given)
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        refuse("the digits are missing: pip install scikit-learn, or set DIGITS_CSV to digits.csv.gz")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def rows() -> list[bytes]:
    """All 1797 digits, each of 65 bytes: 64 pixels from 0 to 16 in rows of eight, then the digit."""
    path = _file()
    try:
        lines = gzip.decompress(path.read_bytes()).splitlines()
        digits = [bytes(map(int, line.split(b","))) for line in lines]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        refuse(f"the digits cannot be read from {path}: {error}")
    if not digits or any(len(digit) != PIXELS + 1 for digit in digits):
        refuse(f"the digits cannot be read from {path}: a row does not have {PIXELS + 1} numbers")
    return digits


class Split:
    """One part of the data: pixels of shape (rows, 64) from 0 to 1, digits of shape (rows,)."""

    def __init__(self, pixels: NDArray[np.float64], digits: NDArray[np.int64]) -> None:
        self.pixels = pixels
        self.digits = digits


def splits() -> tuple[Split, Split, Split]:
    """Training (1197), validation (300) and held-out (300) digits: the same rows in every process."""
    import numpy as np

    table = np.frombuffer(b"".join(rows()), dtype=np.uint8).reshape(-1, PIXELS + 1)
    pixels = table[:, :PIXELS].astype(np.float64) / PIXEL_MAX
    digits = table[:, PIXELS].astype(np.int64)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(table))
    parts = np.split(order, [TRAIN_ROWS, TRAIN_ROWS + VALIDATION_ROWS])
    train, validation, held_out = (Split(pixels[part], digits[part]) for part in parts)
    return train, validation, held_out


def joined(first: Split, second: Split) -> Split:
    """The rows of both parts, the first part's first."""
    import numpy as np

    return Split(
        np.concatenate([first.pixels, second.pixels]),
        np.concatenate([first.digits, second.digits]),
    )
