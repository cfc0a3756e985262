"""Answers to what-if questions. Times are seconds since the epoch; null comes after the horizon."""

from __future__ import annotations

from pydantic import Field

from corral.wire.v1.base import Answer
from corral.wire.v1.reports import GangKey


class Course(Answer):
    """How it goes on with one gang."""

    key: GangKey
    name: str
    tenant: str
    running: bool
    start: float | None
    end: float | None
    preemptions: int = Field(description="those to come")


class Shift(Answer):
    """One gang without and with the changes."""

    before: Course
    after: Course


class PlanReport(Answer):
    """What the changes would do."""

    at: float
    until: float
    gangs: int = Field(description="how many gangs of now were followed")
    submitted: list[Course]
    shifts: list[Shift] = Field(description="gangs whose start or end moves")
    hurt: list[GangKey] = Field(description="those of them that end notably later, or not at all")
    busy_before: float
    busy_after: float
    ends_before: float | None = Field(description="when the last gang of now ends")
    ends_after: float | None
    basis: str
