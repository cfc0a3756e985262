from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.events import JobSubmitted, TaskStarted
from corral.model.ids import DeviceId, JobId, NodeId, TenantId
from corral.model.job import JobSpec
from corral.model.messages import AcknowledgeHeartbeat, Heartbeat, HostMaster, TellMaster
from corral.model.resources import Demand, DeviceState, GangShape, Health
from corral.model.transitions import new_job
from corral.wire import frames
from corral.wire.frames import FrameBuffer, FrameError, Refused, agent_message, engine_message, frame

NODE = NodeId("node-1")


def test_a_message_comes_back_as_it_was() -> None:
    state = DeviceState(DeviceId("GPU-0"), Health.SUSPECT, memory_used_mib=3, detail="µ")
    beat = Heartbeat(node=NODE, sent_boottime_s=1.5, wall_s=2.5, devices=(state,), shards=("a",))
    [payload] = FrameBuffer().feed(frame(beat))
    assert agent_message(payload) == beat


def test_whole_jobs_and_facts_travel_to_their_masters() -> None:
    spec = JobSpec("work", TenantId("default"), GangShape(2, Demand()), argv=("true",), indices=(5, 7))
    job = new_job(JobSubmitted(at=1.0, job=JobId("12"), spec=spec))
    for message in (
        HostMaster(node=NODE, epoch=1, job=job, generation=3),
        TellMaster(
            node=NODE,
            epoch=1,
            job=job.id,
            generation=3,
            fact=TaskStarted(at=1.0, job=job.id, gang=1, incarnation=1, rank=0),
        ),
        Refused("no"),
    ):
        [payload] = FrameBuffer().feed(frame(message))
        assert engine_message(payload) == message


@given(st.lists(st.integers(0, 300), max_size=20), st.integers(1, 50))
def test_frames_survive_any_cut(sizes: list[int], cut: int) -> None:
    messages = [Refused("x" * size) for size in sizes]
    data = b"".join(map(frame, messages))
    buffer = FrameBuffer()
    payloads = [p for begin in range(0, len(data), cut) for p in buffer.feed(data[begin : begin + cut])]
    assert [engine_message(payload) for payload in payloads] == messages


def test_a_length_out_of_bounds_ends_the_stream_at_once() -> None:
    for head in (b"\0\0\0\0", b"\xff\xff\xff\xff"):
        with pytest.raises(FrameError, match="announces"):
            FrameBuffer().feed(head)
    with pytest.raises(FrameError, match="1 to 10"):
        FrameBuffer(size_max=10).feed(b"\0\0\0\x0b")


def test_a_message_that_nobody_would_take_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 100)
    with pytest.raises(FrameError, match="longer than 100"):
        frame(Refused("x" * 100))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode({"type": "nothing"}),
        msgspec.msgpack.encode({"type": "heartbeat"}),
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode(AcknowledgeHeartbeat(node=NODE, epoch=1, sent_boottime_s=1.0))[:-1],
    ],
)
def test_garbage_is_one_kind_of_error(payload: bytes) -> None:
    with pytest.raises(FrameError):
        agent_message(payload)
    with pytest.raises(FrameError):
        engine_message(payload)
