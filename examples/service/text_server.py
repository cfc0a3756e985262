"""A tiny text generator behind OpenAI's API, on a CPU: nonsense, but streamed word by word, and always the same.

Its model are the letter frequencies of English that ship in the package essential-generators (1.5 MB). It "reads" a
prompt by scoring it letter by letter, which costs time, and keeps what it has read: a prompt that begins like an
earlier one is read from there on. The number of kept beginnings is CACHE_BLOCKS.

    pip install essential-generators fastapi uvicorn
    PORT=8000 python examples/service/text_server.py
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import random
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from corral.guard import AsgiGuard

NAME = os.environ.get("MODEL", "tiny-words")
BLOCK_CHARS = 256
CACHE_BLOCKS = int(os.environ.get("CACHE_BLOCKS", "400"))
WORD_PAUSE_S = float(os.environ.get("WORD_PAUSE_S", "0.02"))
START, STOP = "STARTWORD", "STOPWORD"


class Model:
    """Letter frequencies, and a cache of beginnings of prompts: their score, by a hash of all that came before."""

    def __init__(self) -> None:
        self.chain = json.loads(files("essential_generators").joinpath("markov_wordgen.json").read_text())
        self.read: OrderedDict[bytes, float] = OrderedDict()

    def score(self, prompt: str) -> tuple[float, int]:
        """Return the log-likelihood of a prompt, and how many of its characters were known already."""
        total, known, running = 0.0, 0, hashlib.blake2b(digest_size=16)
        for start in range(0, len(prompt), BLOCK_CHARS):
            block = prompt[start : start + BLOCK_CHARS]
            running.update(block.encode())
            key = running.digest()
            found = self.read.get(key) if len(block) == BLOCK_CHARS else None
            if found is not None:
                self.read.move_to_end(key)
                total, known = found, start + BLOCK_CHARS
                continue
            total += self._score_block(prompt[max(0, start - 2) : start + BLOCK_CHARS])
            if len(block) == BLOCK_CHARS:
                self.read[key] = total
                while len(self.read) > CACHE_BLOCKS:
                    self.read.popitem(last=False)
        return total, known

    def _score_block(self, text: str) -> float:
        total = 0.0
        for place in range(2, len(text)):
            following = self.chain.get(text[place - 2 : place], {})
            total += math.log(following.get(text[place], 1e-6))
        return total

    def words(self, seed: float, count: int) -> list[str]:
        """Return words that begin with the same seed alike."""
        draw = random.Random(seed)
        return [self._word(draw) for _ in range(count)]

    def _word(self, draw: random.Random) -> str:
        word = current = START
        while len(word) < len(START) + 12 and current in self.chain:
            following = self.chain[current]
            word += draw.choices(following["transitions"], following["weights"])[0]
            current = word[-2:]
        return word.removeprefix(START).replace(STOP, "") or "a"


model = Model()
app = FastAPI()
app.add_middleware(AsgiGuard)


@app.get("/health")
async def health() -> dict[str, str]:
    """Tell that the model is loaded."""
    return {"model": NAME}


@app.post("/v1/completions")
@app.post("/v1/chat/completions")
async def complete(request: Request) -> Any:
    """Answer as OpenAI's API does, in one piece or streamed."""
    said = await request.json()
    chat = request.url.path.endswith("chat/completions")
    messages = said.get("messages", [])
    prompt = "\n".join(f"{one['role']}: {one['content']}" for one in messages) if chat else str(said.get("prompt", ""))
    score, cached = await asyncio.to_thread(model.score, prompt)
    words = model.words(score, int(said.get("max_tokens", 16)))
    usage = {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(words),
        "total_tokens": len(prompt) + len(words),
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    about = {"id": f"gen-{abs(hash(score)):x}", "created": int(time.time()), "model": NAME}
    if said.get("stream"):
        return StreamingResponse(events(about, words, chat=chat), media_type="text/event-stream")
    text = " ".join(words)
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    return JSONResponse({**about, "object": kind, "choices": [choice], "usage": usage})


async def events(about: dict[str, Any], words: list[str], *, chat: bool) -> AsyncIterator[str]:
    """Yield one event for each word, and the last one that ends the stream."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    for number, word in enumerate(words):
        text = word if number == 0 else f" {word}"
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        choice |= {"delta": {"content": text}} if chat else {"text": text}
        yield f"data: {json.dumps({**about, 'object': kind, 'choices': [choice]})}\n\n"
        await asyncio.sleep(WORD_PAUSE_S)
    yield "data: [DONE]\n\n"


if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=int(os.environ["PORT"]), log_level="warning")  # noqa: S104 - the guard asks
