"""Every refusal as a problem document: errors of the tree, of validation, of routing, and faults."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from corral.model.errors import (
    Category,
    CorralError,
    InvalidField,
    MissingField,
    NotFound,
    Refusal,
    UnknownField,
    UsageError,
)
from corral.wire.document import nearest, printable, shown
from corral.wire.v1.base import UNKNOWN_FIELD
from corral.wire.v1.problem import MEDIA_TYPE, RETRY_AFTER_S, Problem
from corral.wire.v1.tenants import NAME_FAULT

log = logging.getLogger(__name__)
_SHOULD = re.compile(r"^[A-Z]\w+ should ")
"""How pydantic begins its messages: "Input should be", "String should have"."""


class KnownRoutes(NamedTuple):
    """The paths of the API, for hints: (template, pattern, method) of each route."""

    routes: tuple[tuple[str, re.Pattern[str], str], ...]

    @classmethod
    def of(cls, prefix: str, *routers: APIRouter) -> KnownRoutes:
        """Return the routes of ``routers`` as they are reached under ``prefix``."""
        found = []
        for route in (route for router in routers for route in router.routes if isinstance(route, APIRoute)):
            pattern, _, _ = compile_path(prefix + route.path)
            found += [(prefix + route.path, pattern, method) for method in sorted(route.methods or ())]
        return cls(tuple(found))

    @property
    def paths(self) -> set[str]:
        """Return all templates."""
        return {template for template, _, _ in self.routes}

    def methods(self, path: str) -> str:
        """Return what is possible on a path, as an ``Allow`` header."""
        return ", ".join(sorted({method for _, pattern, method in self.routes if pattern.match(path)}))


def problem_response(error: CorralError, status: int | None = None) -> Response:
    """Return the answer for an error; its status follows from the error unless it is given."""
    problem = Problem.of_error(error, status)
    headers = {}
    if problem.status in RETRY_AFTER_S:
        headers["Retry-After"] = str(RETRY_AFTER_S[problem.status])
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(problem.json_bytes(), problem.status, headers, MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Make every error of ``app`` a problem document."""
    app.add_exception_handler(CorralError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _routing)
    app.add_exception_handler(Exception, _fault)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, CorralError)
    if error.category is Category.FAULT:
        log.error("a request failed: %s", error, exc_info=error)
    return problem_response(error)


async def _fault(_: Request, error: Exception) -> Response:
    """Answer for a bug: the server logs the traceback, the caller learns its kind alone."""
    return problem_response(CorralError(f"the pool made a mistake ({type(error).__name__})", hint="see its log"))


async def _routing(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = printable(request.url.path)
    routes: KnownRoutes = request.app.state.routes
    if error.status_code == HTTPStatus.NOT_FOUND:
        near = nearest(path, routes.paths)
        return problem_response(NotFound(f"there is no {path}", hint=f"did you mean {near}?" if near else None))
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = routes.methods(request.url.path)
        said = UsageError(f"{request.method} is not possible on {path}", hint=f"possible: {allowed}")
        response = problem_response(said, error.status_code)
        response.headers["Allow"] = allowed
        return response
    return problem_response(UsageError(printable(str(error.detail))), error.status_code)


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    refusals = [_refusal(one) for one in error.errors()]
    first = CorralError.of(refusals[0])
    first.also = tuple(refusals[1:])
    return problem_response(first)


def _refusal(error: Any) -> Refusal:
    """Return one error of pydantic as a refusal."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    place = _path(error["loc"])
    if kind == "json_invalid":
        reason = printable(str(context.get("error", "")))
        return Refusal(UsageError.code, f"the body is not JSON: {reason} at character {error['loc'][-1]}")
    if kind == UNKNOWN_FIELD:
        field = f"{place}.{context['name']}" if place else str(context["name"])
        return Refusal(UnknownField.code, "unknown field", field, str(context["hint"]))
    if kind == "missing":
        return Refusal(MissingField.code, "is missing" if place else "the body is missing", place or None)
    if kind in {"model_attributes_type", "model_type", "dict_type"}:
        return Refusal(InvalidField.code, "must be a JSON object", place or None)
    message = _SHOULD.sub("must ", printable(str(error["msg"])))
    given = error.get("input")
    found = f", not {shown(str(given))}" if kind != NAME_FAULT and isinstance(given, str | int | float | bool) else ""
    return Refusal(InvalidField.code, f"{message[:1].lower()}{message[1:]}{found}", place or None)


def _path(location: Sequence[str | int]) -> str:
    """Return the place of an error as a field's path, without the part of the request that it is in."""
    path = ""
    for step in location[1:]:
        path += f"[{step}]" if isinstance(step, int) else f".{printable(str(step))}" if path else printable(str(step))
    return path
