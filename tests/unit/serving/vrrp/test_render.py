from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from corral.model.errors import InvalidField
from corral.serving.vrrp.render import Vip, checked, render
from tests import needs

VIP = Vip(address="10.9.0.100/24", interface="eth0", own="10.9.0.1", peers=("10.9.0.2", "10.9.0.3"))


def test_a_sound_address_passes() -> None:
    assert checked(VIP) is VIP
    assert VIP.bare == "10.9.0.100"
    six = Vip(address="fd00::64/64", interface="eth0", own="fd00::1", peers=("fd00::2",))
    assert checked(six) is six


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"address": "10.9.0.100"}, "--vip"),
        ({"address": "nowhere/24"}, "--vip"),
        ({"own": "x"}, "--own"),
        ({"own": "10.9.0.100"}, "--own"),
        ({"own": "fd00::1"}, "--own"),
        ({"peers": ()}, "--peer"),
        ({"peers": ("10.9.0.1",)}, "--peer"),
        ({"peers": ("10.9.0.2; rm",)}, "--peer"),
        ({"router": 0}, "--router"),
        ({"router": 256}, "--router"),
        ({"priority": 255}, "--priority"),
        ({"interface": 'eth0"\n}'}, "--interface"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        checked(replace(VIP, **changes))
    assert caught.value.refusal.field == field


def test_keepalived_takes_the_configuration(tmp_path: Path) -> None:
    program = needs.program("keepalived")
    track = tmp_path / "well"
    track.write_text("0\n")
    file = tmp_path / "keepalived.conf"
    # An interface that is everywhere; it refuses to speak on it, and reads all the rest.
    file.write_text(render(replace(VIP, interface="lo"), str(track)))
    said = subprocess.run([program, "--config-test", f"--use-file={file}"], capture_output=True, text=True, check=False)
    words = [line for line in said.stderr.splitlines() if "loopback" not in line and "Unknown interface" not in line]
    assert words == []
