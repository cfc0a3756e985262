"""The problem document: what every refusal looks like (in the spirit of RFC 9457)."""

from __future__ import annotations

from pydantic import Field

from corral.model.errors import Category, CorralError, NotLeader, Refusal, by_code
from corral.wire.document import printable
from corral.wire.v1.base import Answer

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = {429: 5, 503: 1}
_STATUS_OF_CODE = {"USAGE": 400, "JOB_FILE_UNREADABLE": 400, "UNAUTHENTICATED": 401, "TOO_MANY_JOBS": 429}
_STATUS_OF_CATEGORY = {
    Category.USAGE: 422,
    Category.DENIED: 403,
    Category.NOT_FOUND: 404,
    Category.CONFLICT: 409,
    Category.UNAVAILABLE: 503,
    Category.FAULT: 500,
}


class Detail(Answer):
    """One thing that is wrong. All texts are one line and printable, whatever the request held."""

    code: str = Field(description="stable; programs match on it")
    message: str = Field(description="one line for people")
    field: str | None = Field(default=None, description="the path of the field, for example jobs[0].resources.cpus")
    hint: str | None = Field(default=None, description="a way out, often the nearest right name")
    where: str | None = Field(default=None, description="the place in a file")
    retryable: bool = Field(description="whether the same call may succeed later")

    @classmethod
    def of_refusal(cls, refusal: Refusal) -> Detail:
        """Return the detail of a refusal."""
        kind = by_code().get(refusal.code, CorralError)
        return cls(
            code=refusal.code,
            message=printable(refusal.message),
            field=_printable(refusal.field),
            hint=_printable(refusal.hint),
            where=_printable(refusal.where),
            retryable=kind.retryable,
        )


class Problem(Detail):
    """A refusal: the first thing that is wrong, and what else is in the same request."""

    status: int = Field(description="the HTTP status")
    also: list[Detail] = Field(default=[], description="what else is wrong with the request")

    @classmethod
    def of_error(cls, error: CorralError, status: int | None = None) -> Problem:
        """Return the document of an error; its status follows from its code and category unless it is given."""
        first = Detail.of_refusal(error.refusal)
        return cls(
            **first.model_dump(),
            status=status or status_of(error),
            also=[Detail.of_refusal(other) for other in error.also],
        )


def _printable(text: str | None) -> str | None:
    return printable(text) if text is not None else None


def status_of(error: CorralError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, NotLeader) and error.leader:
        return 307
    return _STATUS_OF_CODE.get(error.code, _STATUS_OF_CATEGORY[error.category])
