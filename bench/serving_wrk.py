"""What a proxy costs: CPU for each request beside nginx's, and what it adds to the p99, by wrk. All in the same run.

Before both proxies are the same two replicas (nginx, a fixed answer). Both look up an API key, keep a limit of requests
for each tenant and write a JSON line for each request.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec

from bench.processes import carriers
from bench.progress import say
from bench.serving_pool import ServingPool, free_port, until

ROUNDS = 3
FULL_S, PACED_S = 5, 8
RATE = 2_000
CONNECTIONS = 100
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
SCRIPT = """
local pause = tonumber(os.getenv("PAUSE_MS"))
if pause > 0 then
  function delay() return math.random(0, 2 * pause) end
end
function done(summary, latency, requests)
  local bad = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status
    + summary.errors.timeout
  io.write(string.format('{"requests": %d, "seconds": %f, "bad": %d, "p50_ms": %f, "p99_ms": %f}\\n',
    summary.requests, summary.duration / 1e6, bad, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
"""
REPLICA = """
daemon off; user root; worker_processes 1; pid @DIR@/replica-@PORT@.pid; error_log stderr;
events { worker_connections 4096; }
http {
  access_log off; keepalive_requests 100000000; client_body_temp_path @DIR@/body;
  server { listen 127.0.0.1:@PORT@; location / { default_type text/plain; return 200 "well\\n"; } }
}
"""
PROXY = """
daemon off; user root; worker_processes auto; pid @DIR@/proxy.pid; error_log stderr;
events { worker_connections 10000; }
http {
  keepalive_requests 100000000; client_body_temp_path @DIR@/body; proxy_temp_path @DIR@/proxy;
  map_hash_bucket_size 256;
  map $http_authorization $tenant { default ""; "Bearer @KEY@" default; }
  limit_req_zone $tenant zone=tenants:10m rate=100000r/s;
  log_format line escape=json '{"at":"$msec","tenant":"$tenant","service":"$host","replica":"$upstream_addr",'
    '"method":"$request_method","path":"$uri","status":$status,"bytes":$bytes_sent,"seconds":$request_time,'
    '"connect":"$upstream_connect_time","response":"$upstream_header_time"}';
  access_log @DIR@/access.log line;
  upstream replicas { least_conn; @SERVERS@ keepalive 200; }
  server {
    listen 127.0.0.1:@PORT@ backlog=4096;
    if ($tenant = "") { return 401; }
    location / {
      limit_req zone=tenants burst=10000 nodelay;
      proxy_pass http://replicas; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header X-Corral-Tenant $tenant; proxy_next_upstream error timeout http_502;
    }
  }
}
"""


class Asked(msgspec.Struct, frozen=True):
    """What wrk found."""

    requests: int
    seconds: float
    bad: int
    p50_ms: float
    p99_ms: float


class Way(msgspec.Struct, frozen=True):
    """A way to the replicas: its port, and the processes whose CPU it costs (``beside``: those that only watch)."""

    name: str
    port: int
    pids: tuple[int, ...] = ()
    beside: tuple[int, ...] = ()


def filled(text: str, **values: object) -> str:
    """Return a text with ``@NAME@`` replaced."""
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def wrk(script: Path, port: int, key: str, seconds: int, *, connections: int, pause_ms: int = 0) -> Asked:
    """Load a port of this machine; with a pause each connection waits so long, on average, between its requests."""
    command = [_program("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script)]
    headers = ["-H", "Host: edge", "-H", f"Authorization: Bearer {key}"]
    ended = subprocess.run(
        [*command, *headers, f"http://127.0.0.1:{port}/"],
        env={**os.environ, "PAUSE_MS": str(pause_ms)},
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + 30,
    )
    return msgspec.json.decode(ended.stdout.splitlines()[-1], type=Asked)


def cpu_s(pids: Sequence[int]) -> float:
    """Return the CPU time (seconds) that processes have had."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK_S


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    assert found is not None, name
    return found


@contextmanager
def nginx(folder: Path, key: str, ports: Sequence[int]) -> Iterator[Way]:
    """Run nginx as a proxy before these ports."""
    port, configuration = free_port(), folder / "proxy.conf"
    servers = " ".join(f"server 127.0.0.1:{one};" for one in ports)
    configuration.write_text(filled(PROXY, DIR=folder, KEY=key, PORT=port, SERVERS=servers))
    with (folder / "proxy.log").open("ab") as log:
        process = subprocess.Popen([_program("nginx"), "-c", str(configuration)], stderr=log, start_new_session=True)
    try:
        until(lambda: _listens(port), "nginx", 10.0)
        workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield Way("nginx", port, (process.pid, *map(int, workers)))
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False


def cost(pool: ServingPool) -> dict[str, object]:
    """Measure all ways in turn, several times; return the medians."""
    folder = pool.directory / "wrk"
    folder.mkdir()
    script, replica = folder / "wrk.lua", folder / "replica.conf"
    script.write_text(SCRIPT)
    replica.write_text(filled(REPLICA, DIR=folder))
    own = f"sed s/@PORT@/$PORT/g {replica} > {folder}/replica-$PORT.conf && exec {_program('nginx')}"
    run = ["sh", "-c", f"{own} -c {folder}/replica-$PORT.conf"]
    traffic = {"keys": True, "requests_s_max": 100_000}
    report = pool.serve("edge", 2, run=run, traffic=traffic, readiness="/")
    with pool.client() as client:
        _, key = client.issue_token("default", "caller", "benchmark")
    ports = [int(one.address.rpartition(":")[2]) for one in report.replicas]
    until(lambda: wrk(script, pool.port, key, 1, connections=1).bad == 0, "the key to be known", 20.0)
    front = pool.state_dir / "front"
    proxies = tuple(pid for pid in carriers(front) if _is_proxy(pid))
    with nginx(folder, key, ports) as other:
        ways = (Way("direct", ports[0]), other, Way("corral", pool.port, proxies, (pool.front_end(),)))
        found = _measured(ways, lambda way, **more: wrk(script, way.port, key, **more))
    pool.remove("edge")
    return found


def _is_proxy(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "haproxy"
    return False


def _measured(ways: Sequence[Way], ask: Callable[..., Asked]) -> dict[str, object]:
    each: dict[str, list[float]] = {}
    bad = 0
    paced = {"seconds": PACED_S, "connections": CONNECTIONS, "pause_ms": 1000 * CONNECTIONS // RATE}
    kinds = {"full": {"seconds": FULL_S, "connections": 32}, "paced": paced}
    for _ in range(ROUNDS):
        for way in ways:
            for kind, more in kinds.items():
                row = _asked(way, partial(ask, way, **more))
                bad += int(row.pop("bad"))
                say(f"{way.name} {kind}: {', '.join(f'{name} {value:.2f}' for name, value in row.items())}")
                for name, value in row.items():
                    each.setdefault(f"{way.name} {kind} {name}", []).append(value)
    middle = {name: statistics.median(values) for name, values in each.items()}
    return {
        "cpu_vs_nginx": middle["corral full cpu_us"] / middle["nginx full cpu_us"],
        "cpu_vs_nginx_paced": middle["corral paced cpu_us"] / middle["nginx paced cpu_us"],
        "p99_added_ms": middle["corral paced p99_ms"] - middle["direct paced p99_ms"],
        "p99_added_nginx_ms": middle["nginx paced p99_ms"] - middle["direct paced p99_ms"],
        "wrk_bad": bad,
        "proxies": {name: round(value, 2) for name, value in middle.items() if value},
    }


def _asked(way: Way, ask: Callable[[], Asked]) -> dict[str, float]:
    before, beside = cpu_s(way.pids), cpu_s(way.beside)
    asked = ask()
    spent, watched = cpu_s(way.pids) - before, cpu_s(way.beside) - beside
    return {
        "bad": asked.bad,
        "rate": asked.requests / asked.seconds,
        "p50_ms": asked.p50_ms,
        "p99_ms": asked.p99_ms,
        "cpu_us": 1e6 * spent / asked.requests,
        "beside_us": 1e6 * watched / asked.requests,
    }
