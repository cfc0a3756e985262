"""What the proxy tells, and what it is told."""

from __future__ import annotations

import pytest

from corral.model.errors import ProxyFault
from corral.model.ids import ServiceName
from corral.serving.haproxy.admin import Processes, parse_processes, split
from corral.serving.haproxy.ledger import Ledger
from corral.serving.haproxy.logline import read_line
from corral.serving.haproxy.observed import Present, Row, change_map, change_servers, parse_rows, parse_servers
from corral.serving.haproxy.process import refusal
from corral.serving.haproxy.servers import Server
from tests.unit.serving.haproxy.test_render import backends
from tests.unit.serving.haproxy.world import SHOP, route

# As HAProxy 2.8.25 wrote them.
STATE_FIELDS = (
    "be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight"
    " srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state"
    " bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr"
    " srv_agent_addr srv_agent_port"
)
STATE = f"""1
# {STATE_FIELDS}
3 s_shop 77 r1 127.0.0.1 2 0 100 100 0 1 0 0 6 0 0 1 - 21501 - 0 0 - - 0
3 s_shop 1 r2 ::1 0 1 0 100 0 1 0 0 2 0 0 0 - 21502 - 0 0 - - 0
3 s_shop 2 files 127.0.0.1 0 1 0 100 0 1 0 0 2 0 0 0 - 9 - 0 0 - - 0
4 relay 1 relay - 2 0 1 1 0 1 0 0 6 0 0 0 - 0 - 0 0 - - 0
"""
STATS = """# pxname,svname,qcur,scur,stot,econ,eresp,wretr,status,hrsp_5xx,
s_shop,r1,2,3,40,1,2,5,UP,4,
s_shop,r2,0,0,7,0,0,0,DOWN 1/2,,
s_shop,r3,0,0,7,0,0,0,MAINT,,
s_shop,BACKEND,2,5,45,1,2,5,UP,3,
relay,relay,0,0,0,0,0,0,UP,0,
"""
PROCESSES = """#<PID>          <type>          <reloads>       <uptime>        <version>
22956           master          1 [failed: 2]   0d00h00m24s     2.8.25-5cf5d0683
# workers
23883           worker          0               0d00h00m02s     2.8.25-5cf5d0683
# old workers
22959           worker          1               0d00h00m24s     2.8.25-5cf5d0683
22960           worker          2               0d00h00m24s     2.8.25-5cf5d0683
# programs
"""


def server(name: str, port: int = 1, weight: int = 100) -> Server:
    return Server(name, "10.0.0.1", port, weight, "check")


def test_what_the_proxy_tells_is_read() -> None:
    assert parse_servers(STATE) == {
        SHOP: {
            "r1": Present("127.0.0.1:21501", 100, enabled=True),
            "r2": Present("[::1]:21502", 0, enabled=False),
        }
    }
    assert parse_rows(STATS) == {
        (SHOP, "r1"): Row(True, 5, 40, 7, 5),
        (SHOP, "r2"): Row(False, 0, 7, 0, 0),
        (SHOP, "r3"): Row(False, 0, 7, 0, 0),
        (SHOP, ""): Row(True, 5, 45, 3, 5),
    }
    assert parse_processes(PROCESSES) == Processes(22956, 23883, (22959, 22960), 2)
    assert split("New server registered.\n\n\nno\nmore\n\n") == ["New server registered.", "", "no\nmore"]


@pytest.mark.parametrize("read", [parse_servers, parse_rows, parse_processes])
def test_what_is_no_answer_is_a_fault(read: object) -> None:
    with pytest.raises(ProxyFault):
        read("Permission denied\n")  # type: ignore[operator]


def test_servers_are_changed_by_as_few_words_as_it_takes() -> None:
    there = {
        "same": Present("10.0.0.1:1", 100, enabled=True),
        "heavy": Present("10.0.0.1:1", 100, enabled=True),
        "gone": Present("10.0.0.1:1", 100, enabled=True),
        "going": Present("10.0.0.1:1", 0, enabled=True),
        "moved": Present("10.0.0.1:1", 100, enabled=True),
        "asleep": Present("10.0.0.1:1", 100, enabled=False),
    }
    desired = (server("same"), server("heavy", weight=7), server("moved", 2), server("asleep"), server("new", 3))
    change = change_servers({SHOP: desired}, {SHOP: there})
    assert change.commands == [
        "set server s_shop/heavy weight 7",
        "set server s_shop/moved weight 0",
        "enable health s_shop/asleep",
        "enable server s_shop/asleep",
        "add server s_shop/new 10.0.0.1:3 weight 100 check",
        "enable health s_shop/new",
        "enable server s_shop/new",
        "set server s_shop/gone weight 0",
    ]
    assert change.leaving == {(SHOP, "gone"), (SHOP, "going"), (SHOP, "moved")}


def test_maps_are_changed_by_as_few_words_as_it_takes() -> None:
    assert change_map("m", {"a": "1", "b": "2", "c": "3"}, {"b": "2", "c": "4", "d": "5"}) == [
        "del map m a",
        "add map m d 5",
        "set map m c 4",
    ]


def test_counters_rise_over_the_ends_of_processes() -> None:
    ledger = Ledger()
    key = (SHOP, "r0-1")
    ledger.note(1, {1: {key: Row(True, 2, 10, 1, 0)}})
    ledger.note(2, {1: {key: Row(False, 1, 12, 1, 0)}, 2: {key: Row(True, 0, 5, 0, 1)}})
    assert ledger.row(key) == Row(True, 1, 17, 1, 1)
    ledger.note(2, {2: {key: Row(False, 0, 6, 0, 1)}})
    assert ledger.row(key) == Row(False, 0, 18, 1, 1), "what was under way in a process is over when it is gone"
    told = route(backends=backends(1, draining=(0,)))
    seen = ledger.load(told, frozenset({"r0-1"})).backends[0]
    assert (seen.requests, seen.ejected, seen.drained, seen.up) == (18, True, True, False)
    ledger.forget({ServiceName("other"): None})
    assert ledger.row(key).requests == 6


def test_a_refusal_names_the_lines() -> None:
    output = """[NOTICE]   (1) : haproxy version is 2.8
[ALERT]    (1) : config : parsing [/x/tried.cfg:39] : unknown keyword 'broken' in 'backend' section
[ALERT]    (1) : config : [/x/tried.cfg:41] : 'server a/b' : no
[ALERT]    (1) : config : Fatal errors found in configuration.
"""
    refused = refusal(output)
    assert refused.lines == (39, 41)
    assert "unknown keyword 'broken' in 'backend' section; 'server a/b' : no" in str(refused)
    assert "Killed" in str(refusal("some\nKilled\n"))
    assert refusal("").lines == ()


def test_lines_that_are_no_requests_are_skipped() -> None:
    assert read_line(b"Proxy corral stopped (cumulated conns: FE: 1, BE: 0).\n") is None
    assert read_line(b'{"at": 1}') is None
