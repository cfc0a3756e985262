"""The text by which prompts are compared."""

from __future__ import annotations

import msgspec


class _Said(msgspec.Struct):
    prompt: str | list[object] | None = None
    input: str | list[object] | None = None
    messages: list[dict[str, object]] | None = None


_said = msgspec.json.Decoder(_Said)


def prompt_of(body: bytes) -> str:
    """Return the messages, prompt or input of a request to a model; the body as it is when it is none (or cut off)."""
    try:
        said = _said.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace")
    if said.messages is not None:
        return "".join(f"{one.get('role', '')}\0{one.get('content', '')}\0" for one in said.messages)
    text = said.prompt if said.prompt is not None else said.input
    if text is None:
        return body.decode(errors="replace")
    return text if isinstance(text, str) else str(text)
