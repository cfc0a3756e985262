"""Submitting jobs, with their files where the nodes of the pool do not see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from corral.client.calls import Caller, decoded
from corral.model.errors import FilesMissing, FilesNeeded, InvalidField

if TYPE_CHECKING:
    from corral.client.luggage import Luggage
    from corral.model.ask import JobAsk

T = TypeVar("T")


class Admitted(msgspec.Struct, frozen=True):
    """A job that was admitted, by its number and name."""

    id: str
    name: str


class _Submitted(msgspec.Struct, frozen=True):
    jobs: tuple[Admitted, ...]


class Submitter:
    """Submits jobs; threads may share it.

    Whether files travel is learnt from the first refusal: a pool of one machine is never asked.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._luggage: Luggage | None = None

    def submit(self, jobs: Sequence[JobAsk], key: str, user: str) -> tuple[Admitted, ...]:
        """Submit jobs together under an idempotency key."""
        for job in jobs:
            if job.appmaster is not None:
                _check_proposer(job.appmaster, job.workdir)
        return self.send(jobs, lambda packed: self._submit(packed, key, user))

    def send(self, jobs: Sequence[JobAsk], call: Callable[[Sequence[JobAsk]], T]) -> T:
        """Make a call with jobs, which may be refused for want of their files, and return its answer.

        Then they are sent, and the call is made with the jobs as they are with them.
        """
        luggage = self._luggage
        if luggage is None:
            try:
                return call(jobs)
            except FilesNeeded:
                from corral.client.luggage import Luggage

                luggage = self._luggage = Luggage.of(self._caller)
        try:
            return call(luggage.packed(jobs))
        except (FilesMissing, FilesNeeded):
            # Files were there when they were asked for, and went meanwhile; or other paths are shared by now.
            luggage = self._luggage = type(luggage).of(self._caller)
            return call(luggage.packed(jobs))

    def _submit(self, jobs: Sequence[JobAsk], key: str, user: str) -> tuple[Admitted, ...]:
        from corral.wire.request import document_of

        documents = [document_of(job) for job in jobs]
        for document in documents:
            document.setdefault("user", user)
        body = msgspec.json.encode({"jobs": documents})
        reply = self._caller.call("POST", "/jobs", body=body, headers={"Idempotency-Key": key})
        return decoded(reply.body, _Submitted).jobs


def _check_proposer(entry_point: str, workdir: str | None) -> None:
    from corral.policy.work import ENTRY_POINT
    from corral.wire.entry_point import entry_point_problem

    # What does not look like an entry point at all is the pool's to refuse.
    problem = entry_point_problem(entry_point, workdir) if ENTRY_POINT.fullmatch(entry_point) else None
    if problem is not None:
        raise InvalidField(problem, field="appmaster", hint="it is looked for in workdir first")
