"""Facts, finished jobs and snapshots as rows, and back. Everything that is read is checked first."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from corral.model.errors import SchemaTooNew, StoreCorrupt
from corral.model.events import Fact, FactCodec, job_of
from corral.model.ids import JobId
from corral.ports.store import FinishedJob, JournalEntry

RESTORE: Final = "restore a backup of the state directory; the damaged file is left as it is"
# Level 1 is a quarter of the time of the default for a tenth more bytes: snapshots are JSON and live for minutes.
_COMPRESSION_LEVEL: Final = 1
_KINDS: Final = frozenset(str(kind.__struct_config__.tag) for kind in Fact.__args__)
_FINISHED_FIELDS: Final = tuple(name for name in FinishedJob.__struct_fields__ if name != "document")


class _Tagged(msgspec.Struct):
    """The head of any fact, also of one that this version does not know."""

    kind: str


def journal_crc(seq: int, epoch: int, payload: bytes) -> int:
    """Return the CRC-32 of a journal row: its payload, bound to its place."""
    return zlib.crc32(payload, zlib.crc32(b"%d/%d/" % (seq, epoch)))


def journal_row(seq: int, epoch: int, fact: Fact) -> dict[str, object]:
    """Return a fact as a row of the journal."""
    payload = FactCodec.encode(fact)
    return {
        "seq": seq,
        "epoch": epoch,
        "at": fact.at,
        "kind": fact.__struct_config__.tag,
        "job": job_of(fact),
        "crc": journal_crc(seq, epoch, payload),
        "payload": payload,
    }


def journal_entry(seq: int, epoch: int, crc: int, payload: bytes) -> JournalEntry:
    """Return a row of the journal as an entry.

    Raises ``StoreCorrupt`` when the row is not what was written, ``SchemaTooNew`` when it holds a fact that only a
    newer corral knows.
    """
    if not isinstance(payload, bytes) or journal_crc(seq, epoch, payload) != crc:
        raise StoreCorrupt(f"journal entry {seq} is damaged: its checksum does not match", hint=RESTORE)
    try:
        return JournalEntry(seq, epoch, FactCodec.decode(payload))
    except msgspec.DecodeError as error:
        kind = _kind_of(payload)
        if kind is not None and kind not in _KINDS:
            raise SchemaTooNew(
                f"journal entry {seq} holds a fact of kind {kind!r:.60}, which this corral does not know",
                hint="start the newer corral that wrote it",
            ) from error
        raise StoreCorrupt(f"journal entry {seq} does not decode: {error}", hint=RESTORE) from error


def _kind_of(payload: bytes) -> str | None:
    try:
        return msgspec.json.decode(payload, type=_Tagged).kind
    except msgspec.DecodeError:
        return None


def finished_row(job: FinishedJob) -> dict[str, object]:
    """Return a finished job as a row, without its document. Texts of PostgreSQL hold no NUL: it is shown instead."""
    return {name: _without_nul(getattr(job, name)) for name in _FINISHED_FIELDS}


def _without_nul(value: object) -> object:
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value


def document_row(job: FinishedJob) -> dict[str, object]:
    """Return the document of a finished job as a row."""
    return {"number": job.number, "crc": zlib.crc32(job.document), "document": job.document}


def finished_job(row: Any, document: bytes = b"") -> FinishedJob:
    """Return a row (with the columns of ``finished_jobs``) as a finished job."""
    return FinishedJob(**{name: getattr(row, name) for name in _FINISHED_FIELDS}, document=document)


def checked_document(job: JobId, crc: int, document: bytes) -> bytes:
    """Return the document of a finished job; raise ``StoreCorrupt`` when it is not what was written."""
    if zlib.crc32(document) != crc:
        raise StoreCorrupt(f"the record of finished job {job} is damaged: its checksum does not match", hint=RESTORE)
    return document


def pack_snapshot(data: bytes) -> tuple[str, bytes]:
    """Return the checksum (SHA-256, hex, of the packed bytes) and the packed bytes of a snapshot."""
    packed = zlib.compress(data, _COMPRESSION_LEVEL)
    return hashlib.sha256(packed).hexdigest(), packed


def unpack_snapshot(checksum: str, packed: bytes) -> bytes | None:
    """Return the data of a snapshot, or ``None`` when it is damaged."""
    if hashlib.sha256(packed).hexdigest() != checksum:
        return None
    try:
        return zlib.decompress(packed)
    except zlib.error:
        return None


def gap_in(entries: Sequence[JournalEntry], after: int, last: int) -> int | None:
    """Return the first sequence in (``after``, ``last``] that is not there, or ``None`` when all are."""
    for expected, entry in enumerate(entries, start=after + 1):
        if entry.seq != expected:
            return expected
    return None if len(entries) == last - after else after + len(entries) + 1
