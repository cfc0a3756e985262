"""Run alone, with another driver in its environment: a probe that answers one JSON line per line that it reads."""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from corral.devices import AmdProbe, NvidiaProbe
from corral.devices.release import wait_released
from corral.model.errors import CorralError
from corral.model.ids import DeviceId


def answer(probe: Any, asked: dict[str, Any]) -> Any:
    match asked["do"]:
        case "discover":
            return {"specs": probe.discover(), "reason": probe.reason, "refused": probe.refused}
        case "sample":
            return probe.sample(asked["own"])
        case "xids":
            return probe.take_xids()
        case "wait-released":
            uuids = [DeviceId(uuid) for uuid in asked["uuids"]]
            return wait_released(probe, uuids, asked["pids"], timeout_s=asked["timeout_s"])
        case _:
            return probe.close()


def main() -> None:
    options = json.loads(sys.argv[2])
    probe = {"nvidia": NvidiaProbe, "amd": AmdProbe}[sys.argv[1]](**options)
    for line in sys.stdin:
        try:
            told = answer(probe, json.loads(line))
        except CorralError as error:
            told = {"code": error.code, "message": str(error)}
        sys.stdout.write(msgspec.json.encode(told).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
