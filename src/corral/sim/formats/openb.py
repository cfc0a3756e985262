"""Alibaba's ``openb`` lists of nodes and pods (cluster-trace-gpu-v2023).

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
ATC'23. Nodes: sn, cpu_milli, memory_mib, gpu, model. Pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec.
A pod with several GPUs takes whole ones of one node; ``gpu_spec`` names the allowed models, with ``|`` between them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from corral.model.errors import TraceInvalid
from corral.model.ids import DeviceId, NodeId
from corral.model.resources import MILLI, Demand, DeviceSpec, NodeSpec
from corral.sim.formats.rows import Row, csv_rows

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")
DEVICE_MEMORY_MIB = 0
"""The lists do not say how much memory a device has."""


class Pod(msgspec.Struct, frozen=True):
    """A pod: any of the demands would do. They differ in the device model only."""

    name: str
    demands: tuple[Demand, ...]

    @property
    def gpu_milli(self) -> int:
        """Return the milli-GPUs that it asks for."""
        return self.demands[0].gpu_milli


def read_nodes(path: Path) -> tuple[NodeSpec, ...]:
    """Return the nodes of a list. Raises ``TraceUnreadable`` or ``TraceInvalid``."""
    nodes: dict[str, NodeSpec] = {}
    for row in csv_rows(path, NODE_COLUMNS):
        name, count, model = row.text("sn"), row.whole("gpu"), row.text("model")
        if not name or name in nodes:
            raise row.wrong("sn", f"{name!r} is listed twice" if name else "a node has no name")
        if count and not model:
            raise row.wrong("model", "devices without a model")
        devices = tuple(
            DeviceSpec(DeviceId(f"{name}-{i}"), model, "openb", DEVICE_MEMORY_MIB, i, simulated=True)
            for i in range(count)
        )
        nodes[name] = NodeSpec(
            NodeId(name), name, name, row.whole("cpu_milli"), row.whole("memory_mib"), devices, simulated=True
        )
    if not nodes:
        raise TraceInvalid("the list names no node", where=str(path))
    return tuple(nodes.values())


def read_pods(path: Path) -> tuple[Pod, ...]:
    """Return the pods of a list in its order. Raises ``TraceUnreadable`` or ``TraceInvalid``."""
    pods = tuple(_pod(row) for row in csv_rows(path, POD_COLUMNS))
    if not pods:
        raise TraceInvalid("the list names no pod", where=str(path))
    return pods


def _pod(row: Row) -> Pod:
    count = row.whole("num_gpu")
    milli = row.whole("gpu_milli", low=1) if count else 0
    if milli > MILLI or (count > 1 and milli != MILLI):
        raise row.wrong("gpu_milli", f"{count} x {milli} is neither a share of one GPU nor whole GPUs")
    models = [model.strip() for model in row.text("gpu_spec").split("|")] if count and row.text("gpu_spec") else []
    if not all(models):
        raise row.wrong("gpu_spec", f"{row.text('gpu_spec')!r} holds an empty name")
    cpus, memory = row.whole("cpu_milli"), row.whole("memory_mib")
    return Pod(
        row.text("name"),
        tuple(Demand(count * milli, model, cpus, memory) for model in dict.fromkeys(models) or (None,)),
    )
