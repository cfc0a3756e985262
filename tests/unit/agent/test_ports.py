from __future__ import annotations

import os
import socket

from corral.agent.ports import holder, port_is_free


def test_who_has_a_port_is_found() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not port_is_free(port)
        assert holder(port).startswith(f"process {os.getpid()} (")
    assert port_is_free(port)
    assert holder(port) == ""


def test_a_port_of_the_other_family_is_taken_too() -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert not port_is_free(port)
        assert holder(port).startswith(f"process {os.getpid()} (")
