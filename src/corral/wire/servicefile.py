"""Service files: one or several YAML documents, each a service (``kind: service``).

Relative paths stand on the directory of the file. Every mistake names file, line, column and field.
"""

from __future__ import annotations

import os
from pathlib import Path

from corral.model.errors import DuplicateName, JobFileUnreadable, MissingField
from corral.model.service import ServiceSpec
from corral.wire.document import Checked, Node, Problems, printable, shown
from corral.wire.sbatch import is_batch_script
from corral.wire.service import spec_of_node
from corral.wire.textfile import decoded, read_bytes

KIND_HINT = "say kind: service; jobs are submitted with corral submit"


def parse_service_text(
    data: bytes | str, *, source: str = "<text>", base: str | None = None, check_paths: bool = True
) -> list[ServiceSpec]:
    """Return the services of a YAML text. ``base`` is what relative paths stand on (default: they are refused).

    Raises as :func:`load_services` does.
    """
    from corral.wire.yamltext import yaml_nodes

    text = decoded(data.encode(errors="surrogatepass") if isinstance(data, str) else data, source)
    problems = Problems(Checked(source, base, check_paths))
    roots = [root for root in yaml_nodes(text, source, problems) if root.kind != "null"]
    if not roots:
        raise MissingField("holds no service", where=source, hint="say at least: kind: service, name and run")
    specs: dict[str, ServiceSpec] = {}
    for root in roots:
        if root.kind == "map" and not any(key.text == "kind" for key, _ in root.pairs):
            problems.add(MissingField, root, "kind", "is missing", KIND_HINT)
        spec = spec_of_node(root, problems)
        if spec is not None and spec.name in specs:
            problems.add(DuplicateName, _name_of(root), "name", f"{shown(spec.name)} names two services")
        elif spec is not None:
            specs[spec.name] = spec
    problems.raise_first()
    return list(specs.values())


def _name_of(root: Node) -> Node:
    return next((value for key, value in root.pairs if key.text == "name"), root)


def load_services(path: str | os.PathLike[str], *, check_paths: bool = True) -> list[ServiceSpec]:
    """Return the services of a YAML file.

    Raises ``JobFileUnreadable`` for what cannot be read, is larger than 1 MiB, not UTF-8 or not YAML; and for the first
    mistake ``UnknownField``, ``InvalidField``, ``MissingField``, ``DuplicateName``, ``PathNotFound`` or ``PathUnsafe``,
    with all others in the error's ``also``.
    """
    data = read_bytes(path)
    source = printable(os.fspath(path))
    if is_batch_script(data):
        raise JobFileUnreadable("is a script, not a service file", where=source, hint="put it after --")
    base = str(Path(path).absolute().parent)
    return parse_service_text(data, source=source, base=base, check_paths=check_paths)
