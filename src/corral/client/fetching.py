"""What the tasks of a job gave back, as files in a directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from corral.client.calls import Caller
from corral.client.discovery import Discovery
from corral.client.luggage import Luggage
from corral.model.errors import NotFound
from corral.model.files import Returned
from corral.model.job import Gang, Job
from corral.wire.trees import Kind

GANGS_PAGE = 1_000


class Jobs(Protocol):
    """What is needed of a client."""

    def job(self, ref: str, *, gangs_from: int = 0, gangs_max: int = 1_000) -> Job:
        """Return one job with some of its gangs."""


def fetched(jobs: Jobs, ref: str, directory: Path, caller: Caller) -> list[Path]:
    """Write what a job, or the gang that ``ref`` names, gave back; return the files. Raises ``NotFound``."""
    luggage = Luggage(caller)
    index = ref.split(".")[1] if ref[:1].isdecimal() and "." in ref else None
    first = int(index) if index is not None else 0
    written: list[Path] = []
    while True:
        job = jobs.job(ref, gangs_from=first, gangs_max=1 if index is not None else GANGS_PAGE)
        for gang in job.gangs.values():
            for place, returned in _places(job, gang, directory, whole=index is None):
                tree = luggage.fetch(returned.tree, place)
                written += [place / os.fsdecode(one.path) for one in tree.entries if one.kind is not Kind.DIRECTORY]
        first += GANGS_PAGE
        if index is not None or first >= job.spec.gangs:
            break
    if not written:
        if not Luggage.of(caller).terms.travel:
            raise NotFound(
                f"nothing comes back from a pool of one machine: the files of job {job.id} lie there",
                hint=_staying(job, caller.discovery),
            )
        raise NotFound(f"nothing of job {job.id} came back", hint=_hint(job))
    return written


def _places(job: Job, gang: Gang, directory: Path, *, whole: bool) -> Iterator[tuple[Path, Returned]]:
    """Yield where what each rank of a gang gave back belongs: the newest start's, and only that."""
    newest = max((one.incarnation for one in gang.outputs), default=0)
    place = directory / str(job.spec.indices[gang.index]) if job.spec.is_array and whole else directory
    for returned in gang.outputs:
        if returned.incarnation == newest:
            yield (place / f"rank-{returned.rank}" if len(gang.tasks) > 1 else place), returned


def _staying(job: Job, discovery: Discovery) -> str:
    state_dir = discovery.state_dir if discovery.url is None else "the state directory of the pool"
    own = f"{state_dir}/jobs/{job.id}/output"
    if job.spec.workdir is None:
        return f"see {own}"
    return f"see {job.spec.workdir}, and {own} for what it wrote into CORRAL_OUTPUT_DIR"


def _hint(job: Job) -> str:
    if not job.state.ended:
        return "outputs come back when a task ends"
    if job.spec.files is None and job.spec.workdir is not None and not job.spec.outputs:
        return f"where nodes see it, its files are in {job.spec.workdir}"
    return "name what is to come back in outputs, or write it into CORRAL_OUTPUT_DIR"
