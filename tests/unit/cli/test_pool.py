"""`corral status`, `queue`, `tenant`, `token` and `usage` as text."""

from __future__ import annotations

from datetime import UTC

import msgspec

from corral.cli.render import pool
from corral.cli.render.layout import as_text
from corral.model.ids import GangKey, JobId, QueueName, TenantId
from corral.model.report import HeadReport, PoolStatus, QueueLine, StartEstimate, TenantReport
from corral.model.resources import Amount, Demand, GangShape
from corral.model.tenant import Queue, Quota, Role, Tenant, Token
from corral.ports.store import UsageRow

NOON = 1_764_504_000.0  # 2025-11-30 12:00:00 UTC
HOUR = int(NOON)
STATUS = PoolStatus(
    version="0.1.0",
    pid=4711,
    url="http://127.0.0.1:7420",
    started_at=NOON - 3720,
    now=NOON,
    epoch=3,
    seq=120,
    nodes_up=4,
    nodes=4,
    devices=32,
    devices_failed=1,
    simulated_devices=32,
    capacity=Amount(31_000, 64_000, 1024),
    held=Amount(15_500, 16_000, 512),
    running_gangs=20,
    pending_gangs=7,
    waiting_jobs=1,
    finished_jobs=100,
    cpu_pool=False,
    clock_offset_s=0.0,
    models={"H100": 32},
)


def test_status_at_80_columns() -> None:
    assert as_text(pool.status(STATUS, state_dir="/home/ann/.corral", zone=UTC), width=80) == (
        "corral 0.1.0, pid 4711, epoch 3, journal at 120\n"
        "\n"
        "address        http://127.0.0.1:7420\n"
        "state          /home/ann/.corral\n"
        "running since  2025-11-30 10:58:00 (1h02m)\n"
        "nodes          4 of 4 up\n"
        "devices        32 (32 x H100), all SIMULATED, 1 failed\n"
        "held           15.5 of 31 GPUs (50%), 16 of 64 CPUs (25%)\n"
        "work           20 running, 7 pending, 1 job waiting for others, 100 finished\n"
    )


def test_a_pool_without_gpus_says_so() -> None:
    bare = msgspec.structs.replace(
        STATUS, devices=0, devices_failed=0, simulated_devices=0, models={}, cpu_pool=True, capacity=Amount(0, 64_000)
    )
    text = as_text(pool.status(bare, state_dir="x", zone=UTC), width=80)
    assert "devices        CPU pool: no GPUs found\n" in text
    assert "held           16 of 64 CPUs (25%)\n" in text


def test_a_clock_that_was_set_is_told() -> None:
    text = as_text(pool.status(msgspec.structs.replace(STATUS, clock_offset_s=-3600.0), state_dir="x"), width=80)
    assert "clock          was set by 1h00m; times go on without a jump" in text


def test_several_controllers_and_a_database_that_is_away_are_told() -> None:
    heads = tuple(
        HeadReport(name, f"https://{name}:7420", leads, seen_s)
        for name, leads, seen_s in (("a", False, 0.5), ("b", True, 1.0), ("c", False, 2.0), ("d", False, 4000.0))
    )
    found = msgspec.structs.replace(STATUS, heads=heads, store_away_s=75.0)
    text = as_text(pool.status(found, state_dir="x"), width=120)
    assert "controllers    b leads; a and c stand by; d is silent\n" in text
    assert "database       has not answered for 1m15s; nothing is taken in, another controller may lead\n" in text


def test_the_queue_in_order() -> None:
    shape = GangShape(2, Demand(gpu_milli=4000, gpu_model="H100", cpus_milli=8000))
    estimate = StartEstimate(NOON + 600, NOON + 900, "")
    lines = [
        QueueLine(
            1, GangKey(JobId("7"), 0), "train", TenantId("blue"), "default", 5, shape, 65.0, "4 GPUs short", estimate
        ),
        QueueLine(2, GangKey(JobId("8"), 3), "a\x1bb", TenantId("red"), "default", 0, shape, 5.0, "after job 7", None),
    ]
    rows = [
        " ".join(line.split())
        for line in as_text(pool.queue(lines, now=NOON, limit=2, zone=UTC), width=200).splitlines()
    ]
    assert rows == [
        "POS JOB NAME TENANT PRIO NEEDS WAITED START REASON",
        "1 7 train blue 5 2 x 4 H100 1m05s 12:10 to 12:15 4 GPUs short",
        "2 8.3 a\\x1bb red 0 2 x 4 H100 5.0s - after job 7",
        "the first 2 (--limit shows more)",
    ]
    assert as_text(pool.queue([], now=NOON, limit=2), width=80) == "nothing waits\n"
    behind = as_text(pool.queue([], now=NOON, limit=2, held_back=2), width=80)
    assert behind == "nothing waits for room; 2 jobs wait for other jobs to end\n"
    both = as_text(pool.queue(lines, now=NOON, limit=5, held_back=1, zone=UTC), width=200)
    assert both.splitlines()[-1] == "1 job waits for other jobs to end"
    assert max(map(len, as_text(pool.queue(lines, now=NOON, limit=5, zone=UTC), width=80).splitlines())) <= 80


def test_named_queues() -> None:
    found = [Queue(QueueName("default")), Queue(QueueName("night"), -5, Quota(8000, None), paused=True)]
    assert as_text(pool.queues(found), width=80) == (
        "QUEUE    PRIORITY  LIMIT   STATE\ndefault         0  none    open\nnight          -5  8 GPUs  paused\n"
    )


def test_tenants_with_their_standing() -> None:
    red = Tenant(TenantId("red"), 2.0, Quota(4000, None), Quota(None, 16_000))
    found = [TenantReport(red, 2 / 3, 0.5, 0.61, Amount(16_000), 3, 12)]
    assert as_text(pool.tenants(found), width=120) == (
        "TENANT  WEIGHT    DUE  HOLDS  AVERAGE  GPUS  RUNNING  PENDING  GUARANTEED  LIMIT\n"
        "red          2  66.7%  50.0%    61.0%    16        3       12  4 GPUs      16 CPUs\n"
    )


def test_tokens_never_show_a_secret() -> None:
    found = [Token("t1", "digest", TenantId("red"), Role.USER, NOON, "laptop")]
    text = as_text(pool.tokens(found, zone=UTC), width=80)
    assert "digest" not in text
    assert text.splitlines()[1].split() == ["t1", "red", "user", "2025-11-30", "12:00:00", "laptop"]


ROWS = [
    UsageRow(TenantId("red"), HOUR, 7_200_000.0, 3_600_000.0, 720_000.0),
    UsageRow(TenantId("blue"), HOUR, 3_600_000.0, 0.0),
    UsageRow(TenantId("red"), HOUR + 86_400, 3_600_000.0, 0.0),
]


def test_usage_by_tenant_adds_up_hours() -> None:
    # 7,200,000 + 3,600,000 milli-GPU seconds are 3 GPU-hours, of 4 in all.
    text = as_text(pool.usage(ROWS, since=NOON, until=NOON + 3600, by="tenant", zone=UTC), width=80)
    assert text == (
        "from 2025-11-30 12:00:00 to 2025-11-30 13:00:00\n"
        "\n"
        "TENANT  GPU-HOURS   PART  LOST  CPU-HOURS\n"
        "blue         1.00  25.0%  0.00       0.00\n"
        "red          3.00  75.0%  0.20       1.00\n"
    )


def test_usage_by_day() -> None:
    assert pool.usage_sums(ROWS, "day", UTC) == {
        ("2025-11-30", "blue"): (1.0, 0.0, 0.0),
        ("2025-11-30", "red"): (2.0, 1.0, 0.2),
        ("2025-12-01", "red"): (1.0, 0.0, 0.0),
    }


def test_no_usage_is_said() -> None:
    assert "nothing was used" in as_text(pool.usage([], since=NOON, until=NOON, by="tenant", zone=UTC), width=80)
