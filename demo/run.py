"""The main job: three tenants, one pool of 4 simulated nodes x 8 simulated devices, a failed device and a dead node.

    python -m demo.run            (``make demo``; ``DEMO_JSON=file`` writes the figures)

Tenant ``ada`` (weight 1) maps over the tiles of a satellite image, ``bob`` (weight 2) sweeps 48 hyper-parameter points
over handwritten digits, ``cyd`` (weight 3) trains on four nodes. Each also keeps small jobs queued, so that all three
always want more than their share. Everything is a real process; only the devices are simulated.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from corral.client import Client
from corral.client.handle import JobHandle
from corral.model.errors import CorralError
from corral.model.events import DeviceFailed, Fact
from corral.model.job import JobState
from corral.model.tenant import Tenant
from corral.runtime.options import PoolOptions
from corral.runtime.starting.launcher import start_pool
from corral.runtime.starting.stopping import stop_pool
from demo.faults import fail_device, kill_node
from demo.shares import measured_shares

NODES, DEVICES = 4, 8
WEIGHTS = {"ada": 1.0, "bob": 2.0, "cyd": 3.0}
WINDOW_S = 60.0
DEVICE_FAILS_S, NODE_DIES_S = 12.0, 24.0
WAIT_S = 120.0
TILES = 24
ROOT = Path(__file__).resolve().parent.parent
# Devices and seconds of the small jobs: mixed sizes, a few seconds each.
MIX: tuple[tuple[str | float, float], ...] = ((1, 3.0), (1, 2.0), (2, 3.0), (0.5, 2.5), (1, 4.0))
BATCH = 4
SETTLE_S = max(hold_s for _, hold_s in MIX)
# What a program needs of a node beside its devices: the processes are small.
SMALL: dict[str, Any] = {"cpus": 1, "memory": "1GiB"}


@dataclass
class Demo:
    """What the run needs to remember."""

    state_dir: Path
    console: Console
    began: float = field(default_factory=time.monotonic)
    clients: dict[str, Client] = field(default_factory=dict)
    named: dict[str, JobHandle] = field(default_factory=dict)
    fillers: list[JobHandle] = field(default_factory=list)
    filling: threading.Event = field(default_factory=threading.Event)
    faults: list[CorralError] = field(default_factory=list)

    def say(self, text: str) -> None:
        """Print one line with the time since the start."""
        self.console.print(f"[dim]{time.monotonic() - self.began:5.1f} s[/dim]  {text}")

    def program(self, tenant: str, name: str, module: str, **fields: Any) -> JobHandle:
        """Submit one of the demo's programs."""
        envs = {"OPENBLAS_NUM_THREADS": "1", **fields.pop("envs", {})}
        return self.clients[tenant].submit(
            name=name, run=[sys.executable, "-m", f"demo.{module}"], workdir=ROOT, envs=envs, **SMALL, **fields
        )

    def output(self, job: JobHandle) -> Path:
        """Return where a job's results are."""
        return self.state_dir / "jobs" / job.id / "output"


def tenants(demo: Demo) -> None:
    """Make the tenants, each with a token of its own."""
    with Client(state_dir=demo.state_dir) as admin:
        for name, weight in WEIGHTS.items():
            admin.set_tenant(Tenant(name, weight), create=True)  # type: ignore[arg-type]
            _, secret = admin.issue_token(name, label="demo")
            url = json.loads((demo.state_dir / "daemon.json").read_text())["url"]
            demo.clients[name] = Client(url=url, token=secret)


def real_work(demo: Demo) -> None:
    """Submit the sweep, the gang, the map over tiles, and what follows them."""
    gang = {"MIN_SECONDS": "35", "EPOCHS": "30"}
    demo.named["gang"] = demo.program(
        "cyd", "gang", "gang", gpus=1, num_nodes=4, envs=gang, max_restarts=2, priority=10
    )
    sweep = {"C": [0.1, 1, 10, 100], "GAMMA": [0.1, 0.5, 1, 2], "SCALE": ["unit", "root", "standard"]}
    hold = {"HOLD_SECONDS": "2"}
    demo.named["sweep"] = demo.program("bob", "sweep", "sweep", gpus=1, sweep=sweep, envs=hold, priority=10)
    tiles = {"TILES": str(TILES), "HOLD_SECONDS": "2"}
    demo.named["tiles"] = demo.program("ada", "tiles", "tiles", gpus=1, array=f"0-{TILES - 1}", envs=tiles, priority=10)
    points = {"POINTS": "48", "INPUT_DIR": str(demo.output(demo.named["sweep"]))}
    demo.named["best"] = demo.program("bob", "best", "best", after=demo.named["sweep"], envs=points)
    merge = {"TILES": str(TILES), "INPUT_DIR": str(demo.output(demo.named["tiles"]))}
    demo.named["merge"] = demo.program("ada", "merge", "merge", after=demo.named["tiles"], envs=merge)


def keep_backlogged(demo: Demo) -> None:
    """Keep at least twice each tenant's entitlement of devices queued until told to stop."""
    try:
        _fill(demo)
    except CorralError as error:
        demo.faults.append(error)


def _fill(demo: Demo) -> None:
    turns = dict.fromkeys(WEIGHTS, 0)
    with Client(state_dir=demo.state_dir) as admin:
        while demo.filling.is_set():
            waiting = backlog(admin)
            for name in WEIGHTS:
                while waiting[name] < 3.0 * entitled(name):
                    gpus, hold_s = MIX[turns[name] % len(MIX)]
                    turns[name] += 1
                    demo.fillers.append(filler(demo, name, gpus, hold_s))
                    waiting[name] += float(gpus) * BATCH
            time.sleep(0.5)


def entitled(tenant: str) -> float:
    """Return the devices that a tenant is due while all want more."""
    return NODES * DEVICES * WEIGHTS[tenant] / sum(WEIGHTS.values())


def backlog(admin: Client) -> dict[str, float]:
    """Return the devices that each tenant's queued work asks for."""
    waiting = dict.fromkeys(WEIGHTS, 0.0)
    for line in admin.queue(limit=2_000):
        waiting[line.tenant] += line.shape.demand.gpu_milli * line.shape.ranks / 1000
    return waiting


def await_backlog(demo: Demo, admin: Client) -> None:
    """Return once all three have had twice their entitlement queued for as long as a small job lasts.

    What started earlier, while only some of them wanted anything, has ended then.
    """
    full_by = time.monotonic() + WAIT_S
    since = time.monotonic()
    while time.monotonic() - since < SETTLE_S:
        if demo.faults or time.monotonic() > full_by:
            raise SystemExit(f"the pool does not fill: {demo.faults or admin.status().held}")
        waiting = backlog(admin)
        if any(waiting[name] < 2.0 * entitled(name) for name in WEIGHTS):
            since = time.monotonic()
        time.sleep(0.2)


def filler(demo: Demo, tenant: str, gpus: str | float, hold_s: float) -> JobHandle:
    """Submit a small array."""
    envs = {"HOLD_SECONDS": str(hold_s), "QUERIES": "4"}
    return demo.program(tenant, "small", "filler", gpus=gpus, array=BATCH, envs=envs)


def accidents(demo: Demo, begin: float) -> None:
    """Fail a device under a running task, then kill a node that the gang runs on."""
    with Client(state_dir=demo.state_dir) as admin:
        wait_until(begin + DEVICE_FAILS_S)
        node = admin.nodes()[1]
        device = next(d for d in node.devices if d.held_milli)
        fail_device(demo.state_dir, node.spec.id, device.spec.uuid)
        demo.say(f"[red]device {device.spec.uuid} of {node.spec.id} fails[/red] (simulated)")
        wait_until(begin + NODE_DIES_S)
        gang = admin.job(demo.named["gang"].id).gangs[0]
        places = [p.node for p in gang.placements]
        victim = places[-1] if places else node.spec.id
        killed = kill_node(demo.state_dir, victim)
        demo.say(f"[red]node {victim} dies[/red]: agent, shims and tasks killed, {killed} processes")


def wait_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    time.sleep(max(0.0, moment - time.monotonic()))


def facts_of(demo: Demo) -> Iterator[Fact]:
    """Yield all facts that are journaled so far."""
    with Client(state_dir=demo.state_dir) as admin:
        last = admin.status().seq
        for entry in admin.events(after_seq=0):
            yield entry.fact
            if entry.seq >= last:
                return


def run(demo: Demo) -> dict[str, Any]:
    """Run everything; return the figures."""
    tenants(demo)
    demo.filling.set()
    thread = threading.Thread(target=keep_backlogged, args=(demo,), daemon=True)
    thread.start()
    real_work(demo)
    demo.say("submitted: a 48-point sweep, a 4-node gang, a map over 24 tiles, and small jobs for all three tenants")
    with Client(state_dir=demo.state_dir) as admin:
        await_backlog(demo, admin)
        begin, window_from = time.monotonic(), admin.status().now
        demo.say("all three have twice their share queued: the window begins")
        accidents(demo, begin)
        wait_until(begin + WINDOW_S)
        window_to = admin.status().now
    demo.filling.clear()
    thread.join(WAIT_S)
    if demo.faults:
        raise SystemExit(f"small jobs were refused, the shares say nothing: {demo.faults[0]}")
    demo.say("the window ends; waiting for the rest")
    ended = {name: job.wait(WAIT_S) for name, job in demo.named.items()}
    small = [job.wait(WAIT_S) for job in demo.fillers]
    facts = list(facts_of(demo))
    measured = measured_shares(facts, window_from, window_to, NODES * DEVICES)
    total = sum(WEIGHTS.values())
    return {
        "best_accuracy": best_accuracy(demo),
        "shares": {
            name: {"measured": round(measured.get(name, 0.0), 4), "due": round(weight / total, 4)}
            for name, weight in WEIGHTS.items()
        },
        "restarts": sum(j.restarts + j.moves for j in [*ended.values(), *small]),
        "failed_jobs": sum(j.state is not JobState.SUCCEEDED for j in [*ended.values(), *small]),
        "failed_devices": sum(isinstance(f, DeviceFailed) for f in facts),
        "jobs": len(ended) + len(small),
        "window_s": round(window_to - window_from, 1),
        "simulated": True,
    }


def best_accuracy(demo: Demo) -> float:
    """Return the better of the two held-out accuracies: the chosen point of the sweep, the gang's network."""
    sweep = json.loads((demo.output(demo.named["best"]) / "best.json").read_text())["accuracy"]
    gang = json.loads((demo.output(demo.named["gang"]) / "gang.json").read_text())["accuracy"]
    return float(max(sweep, gang))


def show(demo: Demo, figures: dict[str, Any]) -> None:
    """Print the tables: shares, and the receipts of the real work."""
    shares = Table(title="shares of the pool while all three wanted more")
    for column in ("tenant", "weight", "due", "measured", "difference"):
        shares.add_column(column, justify="left" if column == "tenant" else "right")
    for name, share in figures["shares"].items():
        due, measured = share["due"], share["measured"]
        shares.add_row(name, f"{WEIGHTS[name]:g}", f"{due:.3f}", f"{measured:.3f}", f"{measured - due:+.3f}")
    demo.console.print(shares)
    receipts = Table(title="receipts (simulated devices)")
    for column in ("job", "state", "waited", "ran", "GPU-hours", "lost", "restarts", "moves"):
        receipts.add_column(column, justify="left" if column in ("job", "state") else "right")
    for name, job in demo.named.items():
        r = job.receipt()
        receipts.add_row(
            f"{r.job} {name}", r.state, f"{r.waited_s:.1f} s", f"{r.ran_s:.1f} s", f"{r.gpu_hours:.3f}",
            f"{r.lost_gpu_hours:.3f}", str(r.restarts), str(r.moves),
        )  # fmt: skip
    demo.console.print(receipts)
    demo.say(
        f"best held-out accuracy {figures['best_accuracy']:.4f}; {figures['jobs']} jobs, {figures['failed_jobs']} "
        f"failed; {figures['restarts']} tasks moved after one failed device and one dead node"
    )


def accepted(figures: dict[str, Any]) -> bool:
    """Return whether the run showed what it should."""
    fair = all(abs(s["measured"] - s["due"]) <= 0.05 for s in figures["shares"].values())
    return bool(fair and figures["best_accuracy"] >= 0.97 and figures["failed_jobs"] == 0 and figures["restarts"] > 0)


def main() -> int:
    """Run the demo on a pool of its own; 0 when everything went as it should."""
    folder = Path(tempfile.mkdtemp(prefix="corral-demo-"))
    demo = Demo(folder / "state", Console(width=None if sys.stdout.isatty() else 110))
    options = PoolOptions(state_dir=demo.state_dir, port=0, nodes=NODES, gpus_per_node=DEVICES, simulated="h100")
    try:
        info = start_pool(options)
        demo.say(f"pool of {info.nodes} SIMULATED nodes x {DEVICES} SIMULATED devices at {info.url}")
        figures = run(demo)
        show(demo, figures)
    finally:
        with contextlib.suppress(CorralError):
            stop_pool(demo.state_dir, force=True, leave_tasks=False)
        shutil.rmtree(folder, ignore_errors=True)
    figures["seconds"] = round(time.monotonic() - demo.began, 1)
    if place := os.environ.get("DEMO_JSON"):
        Path(place).write_text(json.dumps(figures))
    return 0 if accepted(figures) else 1


if __name__ == "__main__":
    raise SystemExit(main())
