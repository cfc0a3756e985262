"""Reads single-band GeoTIFF images row by row and writes PNG images, with numpy and the standard library alone."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Tags and values of TIFF revision 6.0 (Aldus, 1992).
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _STRIP_OFFSETS, _SAMPLES = 256, 257, 258, 259, 273, 277
_ROWS_PER_STRIP, _STRIP_BYTES, _PREDICTOR, _SAMPLE_FORMAT = 278, 279, 317, 339
_UNCOMPRESSED, _LZW = 1, 5
# GDAL's own tag: the value of pixels without data, in ASCII.
_NO_DATA = 42113
_ASCII = 2
_FIELD_FORMATS = {1: "B", _ASCII: "B", 3: "H", 4: "I"}
_CLEAR, _END = 256, 257


class RasterError(ValueError):
    """The file is not an image that this reader knows."""


def lzw_decode(data: bytes) -> bytes:
    """Expand TIFF's variant of LZW: codes of 9 to 12 bits, most significant bit first (TIFF 6.0, section 13).

    Raises:
        RasterError: a code points beyond the table.
    """
    fresh = [bytes([value]) for value in range(256)] + [b"", b""]
    table = fresh[:]
    decoded: list[bytes] = []
    width, held, bits, previous = 9, 0, 0, b""
    for byte in data:
        held = (held << 8) | byte
        bits += 8
        if bits < width:
            continue
        bits -= width
        code = held >> bits
        held &= (1 << bits) - 1
        if code == _END:
            break
        if code == _CLEAR:
            table, width, previous = fresh[:], 9, b""
            continue
        if code > len(table) or (code == len(table) and not previous):
            raise RasterError(f"LZW code {code} is beyond the table of {len(table)}")
        entry = table[code] if code < len(table) else previous + previous[:1]
        if previous:
            table.append(previous + entry[:1])
        decoded.append(entry)
        previous = entry
        # Writers widen the codes one entry early.
        width = min(12, max(9, (len(table) + 1).bit_length()))
    return b"".join(decoded)


class Raster:
    """One band of unsigned integers in strips, uncompressed or LZW.

    Attributes:
        width: columns.
        height: rows.
        no_data: the value that stands for a missing measurement, None when the file names none.
    """

    def __init__(self, path: Path) -> None:
        """Read the header of a classic TIFF file.

        Raises:
            OSError: the file cannot be read.
            RasterError: it is no TIFF, or of a kind that this reader does not know.
        """
        self._path = path
        self._data = path.read_bytes()
        if self._data[:4] not in (b"II*\0", b"MM\0*"):
            raise RasterError(f"{path} is not a TIFF image")
        self._order = "<" if self._data[:2] == b"II" else ">"
        try:
            fields = self._fields()
        except struct.error as error:
            raise RasterError(f"{path} is cut short: {error}") from error
        try:
            self.width, self.height = fields[_WIDTH][0], fields[_HEIGHT][0]
            self._offsets, self._sizes = fields[_STRIP_OFFSETS], fields[_STRIP_BYTES]
        except KeyError as error:
            raise RasterError(f"{path} has no strips: tag {error} is missing") from error
        self._rows_per_strip = min(fields.get(_ROWS_PER_STRIP, (self.height,))[0], self.height)
        self._compression = fields.get(_COMPRESSION, (_UNCOMPRESSED,))[0]
        bits = fields.get(_BITS, (1,))[0]
        unknown = (
            bits not in (8, 16)
            or self._compression not in (_UNCOMPRESSED, _LZW)
            or any(fields.get(tag, (1,))[0] != 1 for tag in (_SAMPLES, _PREDICTOR, _SAMPLE_FORMAT))
        )
        if unknown:
            raise RasterError(f"{path} is not one band of 8 or 16 bit unsigned integers, uncompressed or LZW")
        no_data = bytes(fields.get(_NO_DATA, ())).strip(b"\0 ")
        try:
            self.no_data = float(no_data) if no_data else None
        except ValueError as error:
            raise RasterError(f"{path} has an unreadable value for no data: {no_data!r}") from error
        self._dtype = np.dtype(f"{self._order}u{bits // 8}")

    def _fields(self) -> dict[int, tuple[int, ...]]:
        """Whole-number fields of the first directory."""
        (start,) = struct.unpack_from(f"{self._order}I", self._data, 4)
        (count,) = struct.unpack_from(f"{self._order}H", self._data, start)
        fields: dict[int, tuple[int, ...]] = {}
        for entry in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, length = struct.unpack_from(f"{self._order}HHI", self._data, entry)
            if kind not in _FIELD_FORMATS:
                continue
            layout = f"{self._order}{length}{_FIELD_FORMATS[kind]}"
            place = entry + 8
            if struct.calcsize(layout) > 4:
                (place,) = struct.unpack_from(f"{self._order}I", self._data, place)
            fields[tag] = struct.unpack_from(layout, self._data, place)
        return fields

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        """Rows first to last - 1, shape (last - first, width); only the strips that hold them are expanded.

        Raises:
            IndexError: rows outside the image.
            RasterError: a strip is damaged.
        """
        if not 0 <= first < last <= self.height:
            raise IndexError(f"rows {first} to {last} are not within 0 to {self.height}")
        strips = range(first // self._rows_per_strip, (last - 1) // self._rows_per_strip + 1)
        pixels = np.concatenate([self._strip(strip) for strip in strips])
        skipped = first - strips[0] * self._rows_per_strip
        return pixels[skipped : skipped + last - first].astype(np.int64)

    def _strip(self, strip: int) -> NDArray[np.unsignedinteger]:
        start, size = self._offsets[strip], self._sizes[strip]
        data = self._data[start : start + size]
        if self._compression == _LZW:
            data = lzw_decode(data)
        rows = min(self._rows_per_strip, self.height - strip * self._rows_per_strip)
        expected = rows * self.width * self._dtype.itemsize
        if len(data) != expected:
            raise RasterError(f"strip {strip} of {self._path} has {len(data)} bytes instead of {expected}")
        pixels: NDArray[np.unsignedinteger] = np.frombuffer(data, dtype=self._dtype).reshape(rows, self.width)
        return pixels


def png(pixels: NDArray[np.uint8]) -> bytes:
    """PNG file of an image of shape (height, width, 3), red, green and blue from 0 to 255 (ISO/IEC 15948)."""
    height, width, _ = pixels.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)
    lines[:, 1:] = pixels.reshape(height, 3 * width)

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
