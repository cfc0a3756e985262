"""`up`, `down`, `doctor` and the commands of administrators against a real pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.command import UP, Corral


def test_up_says_what_the_pool_is_and_a_second_up_changes_nothing(own: Corral) -> None:
    before = own.json("status")
    assert (before["nodes_up"], before["devices"], before["simulated_devices"]) == (2, 8, 8)
    said = own.refused(*UP, code="ALREADY_RUNNING", exit_code=6)
    assert str(own.state_dir / "pool") in said
    after = own.json("status")
    assert (after["pid"], after["started_at"], after["url"]) == (before["pid"], before["started_at"], before["url"])
    own.ok("down")
    text = own(*UP).out
    assert "devices  8 x H100, all SIMULATED" in text
    assert f"state    {own.state_dir / 'pool'}" in text
    assert "SIMULATED" in own.ok("status")


def test_a_pool_without_gpus_is_called_a_cpu_pool(state_dir: Path) -> None:
    corral = Corral(state_dir)
    try:
        text = corral.ok("up", "--port", "0")
        if Path("/dev/nvidiactl").exists():
            pytest.skip("this machine has a GPU")
        assert "CPU pool: no GPUs found" in text
        assert "CPU pool: no GPUs found" in corral.ok("status")
    finally:
        corral("down", "--force")


def test_down_with_running_jobs_needs_a_word_about_them(own: Corral) -> None:
    job = own.submit("--", "sleep", "600")
    own.wait_state(job, "running")
    said = own.refused("down", code="JOBS_RUNNING", exit_code=6)
    assert "--force" in said
    assert "--leave-tasks" in said
    assert own.state(job) == "running"
    with own.terminal("down") as terminal:
        terminal.wait_for(b"[k]eep the pool? ")
        terminal.press(b"k\n")
        assert terminal.wait() == 6
    left = own("down", "--leave-tasks")
    assert left.code == 0, left.err
    assert "1 task left running" in left.err
    assert own(*UP).code == 0
    own.wait_state(job, "running")
    assert own.json("receipt", job)["restarts"] == 0
    with own.terminal("down") as terminal:
        terminal.wait_for(b"[k]eep the pool? ")
        terminal.press(b"s\n")
        assert terminal.wait() == 0


def test_the_doctor_finds_nothing_wrong_with_a_fresh_pool(corral: Corral) -> None:
    found = corral.json("doctor")["findings"]
    assert {one["check"] for one in found} >= {"python", "state directory", "pool"}
    assert [one for one in found if one["ok"] is False] == []
    assert "nothing is wrong" in corral.ok("doctor")


def test_nodes_can_be_cordoned_and_are_listed_with_their_devices(corral: Corral) -> None:
    corral.ok("nodes", "cordon", "node-2", "--reason", "bad fan")
    try:
        text = corral.ok("nodes")
        assert "up, cordoned: bad fan" in text
        assert "devices (all SIMULATED)" in text
        assert [node["cordoned"] for node in corral.json("nodes")["nodes"]] == [False, True]
    finally:
        corral.ok("nodes", "uncordon", "node-2")
    assert "cordoned" not in corral.ok("nodes", "--no-devices")
    corral.refused("nodes", "remove", "node-1", code="CONFLICT", exit_code=6)
    corral.refused("nodes", "cordon", "node-9", code="NOT_FOUND", exit_code=5)


def test_a_maintenance_may_begin_when_every_node_is_prepared(corral: Corral) -> None:
    assert corral.json("maintenance")["active"] is False
    corral.refused("maintenance", "stop", code="CONFLICT", exit_code=6)
    corral.refused("maintenance", "start", "30 s", code="INVALID_FIELD", exit_code=2)
    corral.refused("maintenance", "start", "soon", code="INVALID_FIELD", exit_code=2)
    try:
        said = corral("maintenance", "start", "30m", "--reason", "new disks")
        assert said.code == 0
        assert "the controller may be away for 29m" in said.err
        assert "(new disks): 2 nodes prepared" in said.err
        planned = corral.json("maintenance", "status")
        assert (planned["active"], planned["missing"], planned["ready"]) == (True, [], ["node-1", "node-2"])
        assert 1700 < planned["left_s"] < 1800
    finally:
        corral.ok("maintenance", "stop")
    assert "no maintenance is under way" in corral.ok("maintenance", "status")


def test_tenants_queues_and_tokens_are_administered(corral: Corral) -> None:
    corral.ok("tenant", "add", "red", "--weight", "2", "--limit-gpus", "4")
    corral.ok("tenant", "set", "red", "--weight", "3", "--guaranteed-gpus", "0.5")
    red = next(one["tenant"] for one in corral.json("tenant")["tenants"] if one["tenant"]["id"] == "red")
    assert (red["weight"], red["limit"]["gpu_milli"], red["guaranteed"]["gpu_milli"]) == (3.0, 4000, 500)
    corral.ok("tenant", "set", "red", "--limit-gpus", "none")
    corral.refused("tenant", "add", "red", code="DUPLICATE_NAME", exit_code=2)
    assert "did you mean red?" in corral.refused("tenant", "set", "reed", code="NOT_FOUND", exit_code=5)
    corral.ok("queue", "add", "night", "--priority", "-5")
    corral.ok("queue", "set", "night", "--paused")
    night = next(one for one in corral.json("queue", "list")["queues"] if one["name"] == "night")
    assert (night["priority"], night["paused"]) == (-5, True)
    secret = corral.ok("token", "issue", "red", "--label", "laptop").strip()
    token = next(one for one in corral.json("token")["tokens"] if one["label"] == "laptop")
    assert "digest" not in token
    foreign = corral.submit("--", "sleep", "600")
    try:
        corral.refused("why", foreign, code="NOT_FOUND", exit_code=5, CORRAL_TOKEN=secret)
        corral.refused("tenant", "add", "blue", code="FORBIDDEN", exit_code=4, CORRAL_TOKEN=secret)
    finally:
        corral.ok("cancel", foreign)
    corral.ok("token", "revoke", token["id"])
    corral.refused("ps", code="UNAUTHENTICATED", exit_code=4, CORRAL_TOKEN=secret)
    corral.ok("queue", "remove", "night")
    corral.ok("tenant", "remove", "red")


def test_usage_is_summed_up(corral: Corral) -> None:
    corral.ok("run", "--gpus", "1", "--", "true")
    assert "GPU-HOURS" in corral.ok("usage", "--since", "1d")
    rows = corral.json("usage", "--since", "1d")["rows"]
    assert {row["tenant"] for row in rows} >= {"default"}


def test_the_shell_completes_jobs_and_nodes(corral: Corral) -> None:
    job = corral.submit("--name", "completed-name", "--", "true")
    for line, word in ((f"corral why {job[:1]}", job), ("corral nodes cordon no", "node-1")):
        count = str(len(line.split(" ")) - 1)
        told = corral(_CORRAL_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=count)
        assert word in told.out.split(), told.err
