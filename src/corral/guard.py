"""Lets only the pool's front ends reach a program that serves. Standard library only; may be copied as it is.

A replica listens on a port that anybody in the network may find. Its front ends show a token in each request, which the
program finds in ``CORRAL_FRONT_END_TOKEN`` as well:

    app = corral.guard.AsgiGuard(app)                 # FastAPI, Starlette, Litestar ...
    app.add_middleware(corral.guard.AsgiGuard)        # the same, as a middleware
    app.wsgi_app = corral.guard.WsgiGuard(app.wsgi_app)    # Flask; Django: application = WsgiGuard(application)
    if not corral.guard.admits(headers.get(corral.guard.HEADER)):    # anything else
        ...                                                          # answer 403

Outside a pool, and with another guard than ``token``, everybody is let in.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

__all__ = ["HEADER", "TOKEN_NAME", "AsgiGuard", "WsgiGuard", "admits"]

HEADER = "X-Corral-Front-End-Token"
"""The header in which front ends show their token."""

TOKEN_NAME = "CORRAL_FRONT_END_TOKEN"  # noqa: S105 - a name, not a secret
"""The environment variable with the token that they show."""

_REFUSAL = b'{"error": "only the front ends of this pool are answered here"}\n'
_LOWER = HEADER.lower().encode()
_WSGI_NAME = "HTTP_" + HEADER.upper().replace("-", "_")

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Asgi = Callable[[_Scope, _Receive, _Send], Awaitable[None]]
_StartResponse = Callable[..., Any]
_Wsgi = Callable[[dict[str, Any], _StartResponse], Iterable[bytes]]


def admits(shown: str | bytes | None) -> bool:
    """Return whether a request with this value of ``HEADER`` (``None`` without) comes from a front end.

    The comparison takes equally long wherever the two differ.
    """
    token = os.environ.get(TOKEN_NAME, "")
    if not token:
        return True
    given = shown.encode(errors="surrogateescape") if isinstance(shown, str) else shown or b""
    return hmac.compare_digest(given, token.encode())


class AsgiGuard:
    """An ASGI application in front of another: answers 403 to strangers, and closes their WebSockets."""

    def __init__(self, app: _Asgi) -> None:
        self._app = app

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Let a request through, without its token, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = [(bytes(name), bytes(value)) for name, value in scope.get("headers", ())]
        shown = [value for name, value in headers if name.lower() == _LOWER]
        if admits(shown[0] if len(shown) == 1 else None):
            rest = [(name, value) for name, value in headers if name.lower() != _LOWER]
            await self._app({**scope, "headers": rest}, receive, send)
        elif scope["type"] == "websocket":
            # Before it is accepted, a close is answered with 403.
            await send({"type": "websocket.close", "code": 1008})
        else:
            length = str(len(_REFUSAL)).encode()
            heads = [(b"content-type", b"application/json"), (b"content-length", length)]
            await send({"type": "http.response.start", "status": 403, "headers": heads})
            await send({"type": "http.response.body", "body": _REFUSAL})


class WsgiGuard:
    """A WSGI application in front of another: answers 403 to strangers."""

    def __init__(self, app: _Wsgi) -> None:
        self._app = app

    def __call__(self, environ: dict[str, Any], start_response: _StartResponse) -> Iterable[bytes]:
        """Let a request through, without its token, or refuse it."""
        if admits(environ.get(_WSGI_NAME)):
            return self._app({name: value for name, value in environ.items() if name != _WSGI_NAME}, start_response)
        heads = [("Content-Type", "application/json"), ("Content-Length", str(len(_REFUSAL)))]
        start_response("403 Forbidden", heads)
        return [_REFUSAL]
