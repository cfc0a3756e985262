"""Trees: equal directories have equal names, what is described is made, what would leave the directory is refused."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.errors import FilesDamaged, FilesTooLarge
from corral.wire.treefiles import Changed, Gathered, gather, lay, scan
from corral.wire.trees import (
    BLOBS_ASKED_MAX,
    CHUNK_BYTES,
    ENTRIES_MAX,
    PACK_BLOBS_MAX,
    PACK_BYTES_MAX,
    Entry,
    Kind,
    batches,
    load_tree,
    name_of,
    pack,
    tree_of,
    unpack,
)

GIB = 1 << 30


def of(directory: Path) -> Gathered:
    return gather(scan(str(directory), bytes_max=GIB))


def make(gathered: Gathered, directory: Path, *, replace: bool = False) -> None:
    def write(entry: Entry, descriptor: int) -> None:
        for digest in entry.chunks:
            os.write(descriptor, gathered.read(digest.hex()))

    lay(gathered.tree.entries, str(directory), write, replace=replace)


def test_a_directory_comes_out_as_it_went_in(tmp_path: Path) -> None:
    there, again = tmp_path / "there", tmp_path / "again"
    there.mkdir()
    again.mkdir()
    (there / "empty").mkdir()
    (there / "deep" / "er").mkdir(parents=True)
    (there / "deep" / "er" / "a b\n'ü").write_bytes(b"x" * 10)
    (there / "nothing").touch()
    (there / "big").write_bytes(os.urandom(CHUNK_BYTES + 1))
    (there / "run.sh").write_text("#!/bin/sh\n")
    (there / "run.sh").chmod(0o750)
    (there / "away").symlink_to("/nowhere/at all")
    (there / "near").symlink_to("deep")
    Path(os.fsdecode(os.fsencode(there) + b"/not-\xff-utf8")).write_bytes(b"?")
    os.mkfifo(there / "pipe")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.relpath(there / "socket"))
    listener.close()

    first = of(there)
    make(first, again)

    assert of(again).tree.name == first.tree.name
    names = [b"away", b"big", b"deep", b"empty", b"near", b"not-\xff-utf8", b"nothing", b"run.sh"]
    assert sorted(os.fsencode(path.name) for path in again.iterdir()) == names
    assert (again / "big").read_bytes() == (there / "big").read_bytes()
    assert str((again / "away").readlink()) == "/nowhere/at all"
    assert os.access(again / "run.sh", os.X_OK)
    assert not os.access(again / "nothing", os.X_OK)
    assert first.tree.root.files == 5
    assert first.tree.root.size_bytes == 10 + CHUNK_BYTES + 1 + len("#!/bin/sh\n") + 1


def test_only_content_gives_a_tree_its_name(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        directory.mkdir()
        (directory / "b").write_text("2")
        (directory / "a").write_text("1")
    os.utime(other / "a", (1, 1))
    assert of(one).tree.name == of(other).tree.name
    (other / "a").chmod(0o755)
    assert of(one).tree.name != of(other).tree.name


def test_of_a_changed_directory_only_the_changed_chunk_is_new(tmp_path: Path) -> None:
    content = bytearray(os.urandom(3 * CHUNK_BYTES))
    (tmp_path / "big").write_bytes(content)
    before = set(of(tmp_path).tree.chunks)
    content[CHUNK_BYTES] ^= 1
    (tmp_path / "big").write_bytes(content)
    after = set(of(tmp_path).tree.chunks)
    assert len(before & after) == 2
    assert after - before == {hashlib.sha256(content[CHUNK_BYTES : 2 * CHUNK_BYTES]).hexdigest()}


def test_a_file_that_changes_after_it_was_hashed_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    gathered = of(tmp_path)._replace(kept={})
    (name,) = gathered.tree.chunks
    assert gathered.read(name) == b"1"
    (tmp_path / "a").write_text("2")
    with pytest.raises(Changed):
        gathered.read(name)


def test_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(3 << 20)
    with pytest.raises(FilesTooLarge, match="the workdir holds more than 2 MiB"):
        scan(str(tmp_path), bytes_max=2 << 20, what="the workdir")


def test_what_is_there_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    there, target, outside = tmp_path / "there", tmp_path / "target", tmp_path / "outside"
    for directory in (there, target):
        directory.mkdir()
    outside.write_text("mine")
    (there / "a").write_text("new")
    (target / "a").symlink_to(outside)
    (target / "kept").write_text("kept")
    make(of(there), target, replace=True)
    assert (target / "a").read_text() == "new"
    assert not (target / "a").is_symlink()
    assert outside.read_text() == "mine"
    assert (target / "kept").read_text() == "kept"
    with pytest.raises(FileExistsError):
        make(of(there), target)


def one_chunk(path: bytes) -> Entry:
    return Entry(path, Kind.FILE, size=1, chunks=(hashlib.sha256(b"x").digest(),))


@pytest.mark.parametrize(
    "entries",
    [
        [one_chunk(b"/etc/passwd")],
        [one_chunk(b"../up")],
        [Entry(b"a", Kind.DIRECTORY), one_chunk(b"a/../b")],
        [Entry(b"a", Kind.DIRECTORY), one_chunk(b"a//b")],
        [one_chunk(b"a/b")],
        [Entry(b"a", Kind.LINK, target=b"/etc"), one_chunk(b"a/passwd")],
        [one_chunk(b"a"), one_chunk(b"a")],
        [one_chunk(b"a\0b")],
        [one_chunk(b"")],
        [one_chunk(b"a" * 5000)],
        [Entry(b"a", Kind.LINK)],
        [Entry(b"a", Kind.FILE, size=1)],
        [Entry(b"a", Kind.FILE, size=-1)],
        [Entry(b"a", Kind.FILE, size=1, chunks=(b"short",))],
    ],
)
def test_what_is_no_directory_is_refused(entries: list[Entry]) -> None:
    with pytest.raises(FilesDamaged):
        tree_of(entries)


def test_a_tree_is_read_from_its_blobs_and_damage_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    tree = of(tmp_path).tree

    def get(names: Sequence[str]) -> list[bytes | None]:
        return [tree.blobs.get(name) for name in names]

    assert load_tree(tree.name, get) == tree
    with pytest.raises(FilesDamaged, match="is not there"):
        load_tree(tree.name, lambda names: [None for _ in names])
    with pytest.raises(FilesDamaged, match="is not what its name says"):
        load_tree(tree.name, lambda names: [b"other" for _ in names])
    for odd in (b"no messagepack \xc1", msgspec.msgpack.encode([9, 0, 0, []]), msgspec.msgpack.encode([1, 0, 5, []])):
        with pytest.raises(FilesDamaged):
            load_tree(name_of(odd), lambda names: [odd] * len(names))  # noqa: B023 - called at once


@given(st.lists(st.none() | st.binary(max_size=50), max_size=8))
def test_packs_hold_what_was_put_in(blobs: list[bytes | None]) -> None:
    assert unpack(pack(blobs)) == blobs


@pytest.mark.parametrize("cut", [b"\0\0", b"\0\0\0\5abc", b"\0\x40\0\1" + bytes(CHUNK_BYTES + 1)])
def test_a_pack_that_is_cut_off_is_refused(cut: bytes) -> None:
    with pytest.raises(FilesDamaged):
        unpack(cut)


@given(st.lists(st.integers(0, CHUNK_BYTES), max_size=30))
def test_batches_hold_every_blob_once_and_fit_into_a_pack(sizes: list[int]) -> None:
    blobs = [(str(i), size) for i, size in enumerate(sizes)]
    found = list(batches(blobs))
    assert [name for batch in found for name in batch] == [name for name, _ in blobs]
    assert all(sum(sizes[int(name)] + 4 for name in batch) <= PACK_BYTES_MAX for batch in found)


# ---- what a stranger may have made ---------------------------------------------------------------------------------


def test_a_small_root_cannot_have_gigabytes_of_lists_read() -> None:
    piece = bytes(1)
    # version 1, one file, 1 byte, and a list of 1,000 blobs of 4 MiB each
    root = msgspec.msgpack.encode((1, 1, 1, [hashlib.sha256(piece).digest()] * 1_000))
    asked: list[str] = []

    def get(names: Sequence[str]) -> list[bytes | None]:
        asked.extend(names)
        return [root if name == name_of(root) else piece for name in names]

    with pytest.raises(FilesDamaged):
        load_tree(name_of(root), get)
    assert asked == [name_of(root)]


def test_entries_are_counted_before_they_are_read() -> None:
    # MessagePack's array of 32 bits (dd) says how long it is; what it holds is not even there.
    listing = b"\xdd" + (ENTRIES_MAX + 1).to_bytes(4, "big")
    root = msgspec.msgpack.encode((1, 0, 0, [hashlib.sha256(listing).digest()]))
    there = {name_of(blob): blob for blob in (root, listing)}
    with pytest.raises(FilesDamaged, match="length"):
        load_tree(name_of(root), lambda names: [there[name] for name in names])


def test_a_list_that_nobody_would_read_is_not_made() -> None:
    long = b"x" * 4_000
    entries = [Entry(b"%06d" % i, Kind.LINK, target=long) for i in range(17_000)]
    with pytest.raises(FilesTooLarge, match="64 MiB"):
        tree_of(entries)


def test_a_pack_of_more_blobs_than_anybody_asks_for_is_refused() -> None:
    whole = bytes(4) * BLOBS_ASKED_MAX
    assert len(unpack(whole)) == BLOBS_ASKED_MAX
    with pytest.raises(FilesDamaged, match="more than"):
        unpack(whole + bytes(4))


def test_many_tiny_blobs_are_divided_too() -> None:
    found = list(batches((str(i), 1) for i in range(2 * PACK_BLOBS_MAX + 1)))
    assert [len(batch) for batch in found] == [PACK_BLOBS_MAX, PACK_BLOBS_MAX, 1]


@pytest.mark.parametrize("whole", [True, False], ids=["a whole tree", "a part without its directories"])
def test_a_link_that_an_earlier_tree_left_leads_nowhere(tmp_path: Path, whole: bool) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    (target / "kept").mkdir(parents=True)
    first = tree_of([Entry(b"a", Kind.LINK, target=os.fsencode(outside))])
    lay(first.entries, str(target), lambda _entry, _descriptor: None, replace=True)
    digest = hashlib.sha256(b"x").digest()
    second = tree_of(
        [
            Entry(b"a", Kind.DIRECTORY),
            Entry(b"a/b", Kind.DIRECTORY),
            Entry(b"a/b/c", Kind.FILE, size=1, chunks=(digest,)),
            Entry(b"kept", Kind.DIRECTORY),
        ]
    )

    def write(_entry: Entry, descriptor: int) -> None:
        os.write(descriptor, b"x")

    entries = second.entries if whole else [entry for entry in second.entries if entry.kind is Kind.FILE]
    lay(entries, str(target), write, replace=True)
    assert list(outside.iterdir()) == []
    assert (target / "a" / "b" / "c").read_bytes() == b"x"
    assert not (target / "a").is_symlink()


def test_what_cannot_be_written_leaves_nothing_half(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"before")
    entry = Entry(b"a", Kind.FILE, size=1, chunks=(hashlib.sha256(b"x").digest(),))

    def full(_entry: Entry, descriptor: int) -> None:
        os.write(descriptor, b"half")
        raise OSError(errno.ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        lay([entry], str(tmp_path), full, replace=True)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"before")]


def test_what_goes_while_it_is_looked_at_is_not_there(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    looked: list[bytes] = []

    def go(path: bytes, is_directory: bool) -> bool:
        if is_directory:
            looked.append(path)
        if len(looked) == 2:
            shutil.rmtree(tmp_path / "1")
            shutil.rmtree(tmp_path / "2")
            looked.append(b"gone")
        return False

    found = scan(str(tmp_path), bytes_max=GIB, ignored=go)
    assert sorted(one.path for one in found) == [b"1", b"2"]
    with pytest.raises(FileNotFoundError):
        scan(str(tmp_path / "never"), bytes_max=GIB)


def test_a_file_that_went_after_it_was_hashed_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.wire.treefiles.KEPT_BYTES", 0)
    (tmp_path / "a").write_text("a")
    gathered = of(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(Changed):
        gathered.read(name_of(b"a"))


def test_a_link_that_leads_elsewhere_now_looks_different(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("1")
    before = scan(str(tmp_path), bytes_max=GIB)
    (tmp_path / "new").symlink_to("2")
    (tmp_path / "new").rename(tmp_path / "latest")
    (now,) = scan(str(tmp_path), bytes_max=GIB)
    assert [(one.path, one.size, one.stamp) for one in before] != [(now.path, now.size, now.stamp)]


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="no /proc here")
def test_a_directory_without_end_is_refused_before_it_is_read() -> None:
    with pytest.raises(FilesTooLarge, match="the workdir holds /proc, where the kernel makes files without end"):
        scan("/proc", bytes_max=1 << 40, what="the workdir")
