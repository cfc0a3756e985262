"""What all data transfer objects share."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Something the API says. Clients must ignore fields that they do not know: fields are only ever added."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, frozen=True)

    @classmethod
    def of(cls, source: Any) -> Self:
        """Return the object of a model's value, field by field of the same name."""
        return cls.model_validate(source)


class Question(BaseModel):
    """Something a client says. A field that is not known is an error, with the nearest right name."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_max_length=1024)
