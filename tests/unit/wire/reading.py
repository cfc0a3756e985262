"""How the tests of job files read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.model.ask import JobAsk
from corral.model.errors import CorralError, Refusal
from corral.wire.jobfile import parse_job_text


def read(text: str, base: Path | None = None) -> list[JobAsk]:
    return parse_job_text(text, source="job.yaml", base=str(base) if base else None)


def refusals(text: str, base: Path | None = None) -> list[Refusal]:
    with pytest.raises(CorralError) as caught:
        read(text, base)
    return [caught.value.refusal, *caught.value.also]
