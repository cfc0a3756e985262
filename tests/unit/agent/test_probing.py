"""When replicas are asked, and which answers count. A loop that was held up stands for an agent that was stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from corral.agent import probing
from corral.agent.inputs import Input, Probed, Question
from corral.agent.outputs import Ask, Hush
from corral.agent.probing import Prober
from corral.agent.replicadir import ServingFile
from corral.model.ids import ServiceName
from corral.model.service import Guard, Probe, ProbeKind, Probes, ServingTask
from tests.unit.agent.words import key
from tests.waiting import wait_until_async

HOST = "127.0.0.1"


class Asked:
    """A server that counts its callers, and a prober whose answers are kept."""

    def __init__(self, tasks: Path, *, mute: bool = False) -> None:
        self.tasks = tasks
        self.told: list[Probed] = []
        self.calls = 0
        self.mute = mute
        self.prober = Prober(HOST, tasks, self._hear)

    def _hear(self, given: Input) -> None:
        assert isinstance(given, Probed)
        self.told.append(given)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        if self.mute:
            await reader.read()
        else:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await writer.drain()
        writer.close()

    def play(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            server = await asyncio.start_server(self._serve, HOST, 0)
            self._write(server.sockets[0].getsockname()[1])
            try:
                await asyncio.wait_for(scenario(), 30.0)
            finally:
                await self.prober.stop()
                server.close()
                # Those that were hung up on see it before the loop is closed.
                await wait_until_async(lambda: len(asyncio.all_tasks()) <= 2)

        asyncio.run(whole())

    def _write(self, port: int) -> None:
        directory = self.tasks / "1.0.0.1"
        directory.mkdir()
        serving = ServingTask(ServiceName("chat"), 1, 1, None, Probes(), Guard.NONE, 30.0)
        (directory / "serving.json").write_bytes(msgspec.json.encode(ServingFile(serving, port)))
        (directory / "spec.json").write_text('{"env": {}, "cwd": "/"}')

    def ask(self, question: Question = Question.READINESS, *, hasty: bool = False, **probe: float) -> None:
        asked = Probe(ProbeKind.HTTP, "/", **probe)  # type: ignore[arg-type]
        self.prober.ask(Ask(key(), 1, question, asked, hasty))


def test_a_question_is_asked_at_once_and_again_until_it_is_hushed(tmp_path: Path) -> None:
    asked = Asked(tmp_path)

    async def scenario() -> None:
        asked.ask(period_s=0.05, timeout_s=20.0)
        asked.ask(Question.LIVENESS, period_s=600.0, timeout_s=20.0)
        await wait_until_async(lambda: len(asked.told) > 5)
        assert {one.fault for one in asked.told} == {None}
        assert [one.question for one in asked.told].count(Question.LIVENESS) == 1
        asked.prober.hush(Hush(key(), 1, Question.READINESS))
        asked.ask(Question.STARTUP, period_s=600.0, hasty=True, timeout_s=20.0)
        # A program that begins is asked sooner than its period says.
        await wait_until_async(lambda: [one.question for one in asked.told].count(Question.STARTUP) > 1)
        asked.prober.hush(Hush(key(), 1))
        assert asked.told[-1].question is Question.STARTUP

    asked.play(scenario)


def test_a_bad_answer_that_the_agent_slept_through_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "LATE_S", 0.2)
    asked = Asked(tmp_path, mute=True)

    async def scenario() -> None:
        asked.ask(period_s=0.05, timeout_s=0.3)
        await wait_until_async(lambda: asked.calls == 1)
        time.sleep(0.6)  # noqa: ASYNC251 - the whole agent stands still
        await wait_until_async(lambda: asked.calls == 2)
        assert asked.told == []
        await wait_until_async(lambda: asked.told)
        assert asked.told[0].fault is not None

    asked.play(scenario)


def test_a_replica_whose_directory_says_nothing_cannot_be_asked_and_says_so(tmp_path: Path) -> None:
    asked = Asked(tmp_path)

    async def scenario() -> None:
        (tmp_path / "1.0.0.1" / "spec.json").unlink()
        asked.ask(period_s=0.05, timeout_s=20.0)
        await wait_until_async(lambda: asked.told)
        assert (asked.told[0].fault or "").startswith("it cannot be asked: ")

    asked.play(scenario)
