"""What a body may be, checked before anything reads it (plain ASGI: costs microseconds)."""

from __future__ import annotations

from urllib.parse import quote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from corral.api.asked import bearer_secret
from corral.api.elsewhere import OPEN_PATHS, Elsewhere
from corral.api.problems import problem_response
from corral.model.errors import CorralError, NotLeader, UsageError
from corral.wire.document import shown
from corral.wire.trees import PACK_BYTES_MAX

BODY_BYTES_MAX = 4 * 1024 * 1024


class Guard:
    """Refuses bodies without a known token (401), over 4 MiB (413), and those that are not declared as JSON (415).

    Packs of files are declared as bytes and may be larger.

    The token is looked at here, too: FastAPI reads a body before it asks who sent it. The content type is required
    because a browser cannot send it to another origin without asking first.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        pool = scope["app"].state.pool
        if isinstance(pool, Elsewhere) and scope["path"] not in OPEN_PATHS:
            await self._refuse(pool.reason(), None, scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}
        length = headers.get(b"content-length", b"0")
        chunked = b"transfer-encoding" in headers
        if length in {b"0", b""} and not chunked:
            await self.app(scope, receive, send)
            return
        try:
            pool.authenticate(bearer_secret(headers.get(b"authorization", b"").decode("latin-1")))
        except CorralError as refused:
            await self._refuse(refused, None, scope, receive, send)
            return
        kind = headers.get(b"content-type", b"").decode("latin-1")
        wanted, bytes_max = _PACKS.get(scope["path"], ("application/json", BODY_BYTES_MAX))
        if kind.partition(";")[0].strip().lower() != wanted:
            named = shown(kind) if kind else "without a content type"
            what = "JSON" if wanted == "application/json" else "a pack of blobs"
            error = UsageError(f"the body is {named}, but must be {what}", hint=f"send Content-Type: {wanted}")
            await self._refuse(error, 415, scope, receive, send)
        elif not length.isdigit() or int(length) > bytes_max:
            await self._refuse(_too_large(bytes_max), 413, scope, receive, send)
        elif chunked:
            await self._buffered(scope, receive, send, bytes_max)
        else:
            await self.app(scope, receive, send)

    async def _buffered(self, scope: Scope, receive: Receive, send: Send, bytes_max: int) -> None:
        """Read a body of unknown length, at most as much as is allowed, and pass it on as one message."""
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if size > bytes_max:
                await self._refuse(_too_large(bytes_max), 413, scope, receive, send)
                return
        whole: list[Message] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)

    @staticmethod
    async def _refuse(error: CorralError, status: int | None, scope: Scope, receive: Receive, send: Send) -> None:
        response = problem_response(error, status)
        if isinstance(error, NotLeader) and error.leader:
            query = scope.get("query_string", b"").decode("latin-1")
            path = scope.get("raw_path", b"").decode("latin-1") or quote(scope["path"])
            response.headers["Location"] = f"{error.leader}{path}{'?' + query if query else ''}"
        # What was not read of the body must not be taken for the next request.
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


_PACK_BODY = ("application/octet-stream", PACK_BYTES_MAX + 1024 * 1024)
_PACKS = {"/v1/files/blobs": _PACK_BODY, "/v1/files/logs": _PACK_BODY}
"""The bodies that are packs of blobs (:mod:`corral.wire.trees`). The head of one of logs may come on top."""

_LOOKED_AT = frozenset({b"authorization", b"content-length", b"content-type", b"transfer-encoding"})


def _too_large(bytes_max: int) -> UsageError:
    return UsageError(f"the body is larger than {bytes_max // 2**20} MiB", hint="mount data with file_mounts")
