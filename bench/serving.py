"""How services hold: faults under load, what the front end costs beside nginx, a virtual address, balancing.

    python -m bench.serving --json
    python -m bench.serving --only kill --only balance

Parts whose programs are missing on this machine are left out: ``missing`` says why. The pool's GPUs are simulated;
replicas, front ends, HAProxy, nginx and keepalived are real.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from bench.hosts import HostFailed, HostsUnavailable, missing_packages
from bench.pool import PoolFailed
from bench.progress import end_tidily_on_signals, say
from bench.serving_balance import affinity, tails
from bench.serving_drills import killed, leaderless, renewed
from bench.serving_pool import ServingPool
from bench.serving_vip import DRILLS, virtual_address
from bench.serving_wrk import cost
from corral.model.errors import CorralError

GOALS: Mapping[str, float] = {
    "kill_failed_idempotent": 0,
    "eject_s_max": 0.5,
    "sigstop_eject_s": 1.0,
    "drain_cut_streams": 0,
    "update_failed": 0,
    "scale_routed_s": 1.0,
    "cpu_vs_nginx": 1.3,
    "p99_added_ms": 5.0,
    "vip_link_s_max": 0.5,
    "vip_process_s_max": 1.0,
    "vip_double_s_max": 2.0,
    "leaderless_failed": 0,
    "p2c_p99_vs_rr": 0.7,
}
"""What may be measured at most."""
AFFINITY_GAIN_MIN = 2.0
Found = Mapping[str, object]


class Part(msgspec.Struct, frozen=True):
    """One part: the programs it needs (with their Debian packages), and whether only root can run it."""

    measure: Callable[[], Found]
    programs: Mapping[str, str] = {}
    root: bool = False


def in_pool(scene: Callable[[ServingPool], object]) -> Found:
    """Run a part on a pool of its own."""
    with ServingPool() as pool:
        done = scene(pool)
        found = asyncio.run(done) if asyncio.iscoroutine(done) else done
    assert isinstance(found, dict)
    return found


def parts(seconds: float, drills: int) -> dict[str, Part]:
    """Return all parts by name."""
    return {
        "kill": Part(partial(in_pool, killed)),
        "renew": Part(partial(in_pool, renewed)),
        "leaderless": Part(partial(in_pool, partial(leaderless, seconds=seconds))),
        "cost": Part(partial(in_pool, cost), {"nginx": "nginx-light", "wrk": "wrk"}),
        "vip": Part(partial(virtual_address, drills), {"keepalived": "keepalived"}, root=True),
        "balance": Part(partial(in_pool, tails)),
        "affinity": Part(partial(in_pool, affinity)),
    }


def lacking(part: Part) -> str:
    """Return why a part cannot run here, empty when it can."""
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    packages = [package for name, package in part.programs.items() if shutil.which(name, path=path) is None]
    if part.root and os.geteuid() != 0:
        return "it makes network namespaces: run it as root"
    packages += missing_packages() if part.root else []
    return f"apt-get install {' '.join(packages)}" if packages else ""


def missed(found: Found) -> list[str]:
    """Return the goals that were not reached, of those that were measured."""
    over = [f"{name} {found[name]} > {most:g}" for name, most in GOALS.items() if _number(found, name) > most]
    gain = found.get("affinity_hit_gain")
    less = isinstance(gain, float) and gain < AFFINITY_GAIN_MIN
    return [*over, *([f"affinity_hit_gain {gain} < {AFFINITY_GAIN_MIN:g}"] if less else [])]


def _number(found: Found, name: str) -> float:
    value = found.get(name, 0.0)
    assert isinstance(value, int | float)
    return value


def measure(wanted: Mapping[str, Part]) -> dict[str, object]:
    """Run these parts one after the other. What one cannot do is told in ``missing``, what broke in ``broken``."""
    found: dict[str, object] = {}
    missing: dict[str, str] = {}
    broken: dict[str, str] = {}
    loads = {}
    for name, part in wanted.items():
        why = lacking(part)
        if why:
            missing[name] = why
            continue
        say(f"{name} ...")
        loads[name] = round(os.getloadavg()[0], 1)
        try:
            found |= {
                key: round(value, 4) if isinstance(value, float) else value for key, value in part.measure().items()
            }
        except (CorralError, PoolFailed, HostFailed, HostsUnavailable, TimeoutError) as error:
            broken[name] = f"{type(error).__name__}: {error}"
            say(f"{name}: {broken[name]}")
    return {
        **found,
        "missed": missed(found),
        "missing": missing,
        "broken": broken,
        "load_before": loads,
        "simulated": True,
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    known = parts(60.0, DRILLS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--only", action="append", choices=sorted(known), help="run this part alone; repeat it for more"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long there is no controller (leaderless)")
    parser.add_argument(
        "--drills", type=int, default=DRILLS, help="how often each fault of the virtual address is made"
    )
    options = parser.parse_args()
    end_tidily_on_signals()
    every = parts(options.seconds, options.drills)
    found = measure({name: part for name, part in every.items() if options.only is None or name in options.only})
    print(json.dumps(found) if options.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 1 if found["missed"] or found["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
