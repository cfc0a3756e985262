"""What waits to be handed to the core, in order; bounded per node while nothing can be taken out."""

from __future__ import annotations

import asyncio
import itertools

import msgspec

from corral.control.core import Answer, Input
from corral.model.errors import CorralError
from corral.model.ids import NodeId
from corral.model.messages import Heartbeat
from corral.ports.engine import AgentGone, EngineSays


class Letter(msgspec.Struct):
    """An input, and who waits for the answer."""

    item: Input
    reply: asyncio.Future[Answer] | None = None

    def refuse(self, why: CorralError) -> None:
        """Tell whoever waits."""
        if self.reply is not None and not self.reply.done():
            self.reply.set_exception(why)


class Inbox:
    """Letters in the order in which they came.

    While it is ``stuck`` (the database is away, for hours perhaps) what nodes say is folded: of heartbeats in a row the
    last one stays, and of a connection that broke only that it did, for all of it may have been lost in the same way:
    what matters is in the next hello. So a node that comes and goes leaves no more than one that stays.
    """

    def __init__(self) -> None:
        self._letters: dict[int, Letter] = {}
        self._numbers = itertools.count()
        self._stuck = False
        self._said: dict[NodeId, list[int]] = {}

    def __len__(self) -> int:
        return len(self._letters)

    def put(self, letter: Letter) -> int:
        """Add a letter; return its number."""
        number = next(self._numbers)
        self._letters[number] = letter
        return number

    def hear(self, said: EngineSays) -> None:
        """Add what the engine says."""
        if not self._stuck:
            self.put(Letter(said))
            return
        waiting = self._said.setdefault(said.node, [])
        if isinstance(said, AgentGone):
            for number in waiting:
                del self._letters[number]
            waiting.clear()
        elif isinstance(said, Heartbeat) and waiting and isinstance(self._letters[waiting[-1]].item, Heartbeat):
            self._letters[waiting[-1]].item = said
            return
        waiting.append(self.put(Letter(said)))

    def take(self, most: int) -> list[Letter]:
        """Take the oldest letters out."""
        assert not self._stuck, "what is taken out must not be folded any more"
        numbers = list(itertools.islice(self._letters, most))
        return [self._letters.pop(number) for number in numbers]

    def stick(self) -> None:
        """Begin to fold: nothing is taken out for now."""
        self._stuck = True

    def flow(self) -> None:
        """Stop folding."""
        self._stuck = False
        self._said.clear()

    def refuse(self, why: CorralError) -> None:
        """Refuse all that somebody waits for the answer of; the rest stays."""
        for number, letter in list(self._letters.items()):
            if letter.reply is not None:
                letter.refuse(why)
                del self._letters[number]
