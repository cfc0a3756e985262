"""What `corral down` asks at a terminal while tasks run: the letters are those of `run` after Ctrl-C."""

from __future__ import annotations

from tests.e2e.command import UP, Corral


def test_down_asks_and_d_lets_the_tasks_go_on(own: Corral) -> None:
    job = own.submit("--", 'while [ ! -e "$HOME/end" ]; do sleep 0.05; done; echo ended')
    own.wait_state(job, "running")
    with own.terminal("down") as terminal:
        terminal.wait_for(b"[s]top them, [d]etach and let them go on, or [k]eep the pool?")
        terminal.press(b"d\n")
        assert terminal.wait() == 0
    own.ok(*UP)
    (own.home / "end").touch()
    own.wait_state(job, "succeeded")
    assert own.ok("logs", job) == "ended\n"
