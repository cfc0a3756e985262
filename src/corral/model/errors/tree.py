"""The root of the tree of errors, and how a class is found by its code."""

from __future__ import annotations

from typing import ClassVar

from corral.model.refusal import Category, Refusal


class CorralError(Exception):
    """Root of the tree. ``code`` is stable; ``retryable`` says whether the same call may succeed later.

    ``also`` holds what else is wrong with the same request, each as a refusal of its own (usually empty).
    """

    code: ClassVar[str] = "CORRAL"
    category: ClassVar[Category] = Category.FAULT
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, field: str | None = None, hint: str | None = None, where: str | None = None
    ) -> None:
        self.refusal = Refusal(self.code, message, field, hint, where)
        self.also: tuple[Refusal, ...] = ()
        super().__init__(self.refusal.line())

    @classmethod
    def of(cls, refusal: Refusal) -> CorralError:
        """Return the exception of the class whose code the refusal carries (``CorralError`` when unknown)."""
        kind = by_code().get(refusal.code, cls)
        return kind(refusal.message, field=refusal.field, hint=refusal.hint, where=refusal.where)


class UsageError(CorralError):
    """The request is wrong in itself; repeating it cannot help."""

    code = "USAGE"
    category = Category.USAGE


def by_code() -> dict[str, type[CorralError]]:
    """Return every error class of the tree by its stable code."""
    found: dict[str, type[CorralError]] = {}
    todo: list[type[CorralError]] = [CorralError]
    while todo:
        kind = todo.pop()
        found[kind.code] = kind
        todo.extend(kind.__subclasses__())
    return found
