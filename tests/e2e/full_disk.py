"""Run alone, as root, in a mount namespace of its own: a pool whose disk gets full. Prints one JSON object.

The pool's directory is a real file system of 48 MiB. One job holds all devices, so that only the journal grows while
jobs are submitted until the pool refuses.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from corral.client import Client
from corral.model.errors import CorralError
from tests.e2e.livepool import LivePool
from tests.waiting import wait_until

FREE_BYTES = 3_000_000
JOBS_MAX = 2_000


def fill(disk: Path) -> None:
    """Leave ``FREE_BYTES`` of the disk."""
    free = int(subprocess.run(["stat", "-f", "-c", "%a %S", disk], capture_output=True, check=True).stdout.split()[0])
    (disk / "ballast").write_bytes(b"b" * (free * 4096 - FREE_BYTES))


def submit_until_refused(client: Client) -> tuple[list[str], str]:
    acknowledged: list[str] = []
    while len(acknowledged) < JOBS_MAX:
        try:
            job = client.submit(run=["true"], gpus=1, workdir=None, envs={"BALLAST": "x" * 20_000})
        except CorralError as error:
            return acknowledged, error.code
        acknowledged.append(job.id)
    return acknowledged, ""


def main(disk: Path) -> dict[str, object]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk], check=True)
    pool = LivePool(disk / "s")
    try:
        pool.up(nodes=1, gpus=1)
        holder = pool.submit(["sleep", "600"], gpus=1)
        pool.started(holder)
        child = pool.shim(holder)["child_pid"]
        fill(disk)
        with Client(state_dir=pool.state_dir, retry_s=0.0) as client:
            acknowledged, code = submit_until_refused(client)
        wait_until(lambda: not pool.supervisor(), 30.0, what="the pool to stop")
        failure = json.loads(pool.paths.failure.read_text())
        seen = ""
        try:
            pool.client.jobs()
        except CorralError as error:
            seen = f"{error.code}: {error}"
        again = ""
        try:
            pool.up(nodes=1, gpus=1)
        except CorralError as error:
            again = f"{error.code}: {error}"
        (disk / "ballast").unlink()
        pool.up(nodes=1, gpus=1)
        listed = {job.id for job in pool.client.jobs(limit=10_000).jobs}
        same = pool.shim(holder)["child_pid"] == child
        holder.cancel()
        last = pool.client.wait(acknowledged[-1], 60.0)
        return {
            "acknowledged": len(acknowledged),
            "code": code,
            "failure": failure,
            "seen": seen,
            "again": again,
            "lost": sorted(set(acknowledged) - listed),
            "task_went_on": same,
            "last": [last.state, last.exit_code],
        }
    finally:
        pool.end()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
