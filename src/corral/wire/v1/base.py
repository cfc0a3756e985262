"""What all data transfer objects share."""

from __future__ import annotations

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from corral.wire.document import nearest, shown

UNKNOWN_FIELD = "unknown_field"


class Answer(BaseModel):
    """Something the API says. Clients must ignore fields that they do not know: fields are only ever added."""

    model_config = ConfigDict(extra="ignore", from_attributes=True, frozen=True)

    @classmethod
    def of(cls, source: Any) -> Self:
        """Return the object of a model's value, field by field of the same name."""
        return cls.model_validate(source)

    def json_bytes(self) -> bytes:
        """Return its JSON."""
        return self.__pydantic_serializer__.to_json(self)


class Question(BaseModel):
    """Something a client says. A field that is not known is an error that names the nearest right one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_fields_only(cls, value: Any) -> Any:
        if isinstance(value, dict):
            for name in value:
                if name not in cls.model_fields:
                    near = nearest(str(name), cls.model_fields)
                    known = ", ".join(sorted(cls.model_fields))
                    hint = f"did you mean {near}?" if near else f"known here: {known}"
                    context = {"name": shown(str(name))[1:-1], "hint": hint}
                    raise PydanticCustomError(UNKNOWN_FIELD, "unknown field", context)
        return value
