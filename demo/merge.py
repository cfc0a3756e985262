"""Merges the tiles of the satellite image, after checking that each is there exactly once and right by value.

Environment: TILES (how many), INPUT_DIR (the tiles' output directory; default CORRAL_OUTPUT_DIR), CORRAL_OUTPUT_DIR,
optionally IMAGE_DIR. Writes vari.npy, vari.png and merged.json.
"""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from demo import task
from demo.raster import RasterError, png
from demo.tiles import Window, analyse, open_image, statistics, window

# Bare rock to forest; grey where the index is undefined.
_COLOURS = np.array([[120, 60, 20], [240, 235, 200], [20, 100, 30]], dtype=np.float64)
_UNDEFINED = (128, 128, 128)


class Tile(NamedTuple):
    """One tile as its task wrote it."""

    path: Path
    number: int
    tiles: int
    window: Window
    statistics: dict[str, Any]
    vari: NDArray[np.float64]
    edges: NDArray[np.float64]


def read_tile(path: Path) -> Tile:
    """Read one file of `demo.tiles`; ends the program when it is something else."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            label = json.loads(str(arrays["label"]))
            return Tile(
                path,
                label["index"],
                label["tiles"],
                Window(*label["window"]),
                label["statistics"],
                arrays["vari"],
                arrays["edges"],
            )
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        task.refuse(f"{path} is not a tile: {error!r}", task.EXIT_FAILED)


def read_tiles(folder: Path, count: int) -> list[Tile]:
    """The tiles in the order of their indices; ends the program when one is missing, there twice or foreign."""
    found: dict[int, Tile] = {}
    for path in sorted(folder.glob("tile-*.npz")):
        tile = read_tile(path)
        if tile.tiles != count or not 0 <= tile.number < count:
            task.refuse(f"{path.name} is tile {tile.number} of {tile.tiles}, not of {count}", task.EXIT_FAILED)
        if tile.number in found:
            names = f"{found[tile.number].path.name} and {path.name}"
            task.refuse(f"tile {tile.number} is there twice: {names}", task.EXIT_FAILED)
        found[tile.number] = tile
    missing = [str(index) for index in range(count) if index not in found]
    if missing:
        task.refuse(f"{len(missing)} of {count} tiles missing in {folder}: {', '.join(missing)}", task.EXIT_FAILED)
    return [found[index] for index in range(count)]


def assemble(tiles: list[Tile], height: int, width: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Index and edges of the whole image, shape (height, width); ends the program when a tile does not fit."""
    vari, edge = np.full((2, height, width), np.nan)
    for tile in tiles:
        place = window(tile.number, len(tiles), height, width)
        shape = (place.bottom - place.top, place.right - place.left)
        if tile.window != place or tile.vari.shape != shape or tile.edges.shape != shape:
            task.refuse(f"{tile.path.name} does not fit its place in the image", task.EXIT_FAILED)
        rows, columns = slice(place.top, place.bottom), slice(place.left, place.right)
        vari[rows, columns] = tile.vari
        edge[rows, columns] = tile.edges
    return vari, edge


def added_up(tiles: list[Tile]) -> dict[str, Any]:
    """The statistics of the image from those of its tiles."""
    total: dict[str, Any] = {
        name: sum(tile.statistics[name] for tile in tiles) for name in ("pixels", "undefined", "vegetated")
    }
    total["histogram"] = np.sum([tile.statistics["histogram"] for tile in tiles], axis=0).tolist()
    total["edge_max"] = max(tile.statistics["edge_max"] for tile in tiles)
    return total


def coloured(vari: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Map of the index from brown over pale to green, shape (height, width, 3); -0.25 and 0.25 are the ends."""
    place = np.clip(2.0 * np.nan_to_num(vari) + 0.5, 0.0, 1.0)
    bands = [np.interp(place, (0.0, 0.5, 1.0), _COLOURS[:, band]) for band in range(3)]
    picture = np.stack(bands, axis=-1)
    picture[np.isnan(vari)] = _UNDEFINED
    return picture.astype(np.uint8)


def main() -> None:
    """Merge, compare with the computation in one piece, write."""
    count = task.integer("TILES", at_least=1)
    output = task.directory("CORRAL_OUTPUT_DIR")
    tiles = read_tiles(task.directory("INPUT_DIR", str(output)), count)
    task.say(f"all {count} tiles are there, each once")
    image = open_image()
    vari, edge = assemble(tiles, image.height, image.width)
    try:
        whole_vari, whole_edge = analyse(image, Window(0, image.height, 0, image.width))
    except RasterError as error:
        task.refuse(f"the image cannot be read: {error}")
    facts = added_up(tiles)
    same = np.array_equal(vari, whole_vari, equal_nan=True) and np.array_equal(edge, whole_edge, equal_nan=True)
    if not same or facts != statistics(whole_vari, whole_edge):
        task.refuse("the merged tiles differ from the computation in one piece", task.EXIT_FAILED)
    task.say(f"{vari.size} pixels equal the computation in one piece by value")
    packed = io.BytesIO()
    np.save(packed, vari)
    task.write_whole(output / "vari.npy", packed.getvalue())
    task.write_whole(output / "vari.png", png(coloured(vari)))
    facts |= {"tiles": count, "width": image.width, "height": image.height}
    task.write_whole(output / "merged.json", json.dumps(facts).encode())
    task.say(f"vegetated: {facts['vegetated'] / facts['pixels']:.1%} of the image")


if __name__ == "__main__":
    task.run(main)
