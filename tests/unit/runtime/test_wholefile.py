"""Files that are written whole, by many at once."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from corral.runtime.wholefile import write_whole


def test_threads_that_write_one_file_never_mix_and_never_fail(tmp_path: Path) -> None:
    place = tmp_path / "cluster.json"
    texts = [letter.encode() * 100_000 for letter in "abcd"]
    seen = set()

    def write(text: bytes) -> None:
        for _ in range(50):
            write_whole(place, text)
            seen.add(place.read_bytes())

    with ThreadPoolExecutor(len(texts)) as threads:
        for done in [threads.submit(write, text) for text in texts]:
            done.result()
    assert seen <= set(texts)
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_a_secret_is_one_from_its_first_moment_on(tmp_path: Path) -> None:
    place = tmp_path / "token"
    place.write_text("old")
    place.chmod(0o644)
    write_whole(place, b"new", mode=0o600)
    assert (place.read_text(), stat.S_IMODE(place.stat().st_mode)) == ("new", 0o600)


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    place = tmp_path / "pool.json"
    place.mkdir()
    with pytest.raises(OSError):
        write_whole(place, b"new")
    assert list(tmp_path.iterdir()) == [place]
