"""Job files: one or several YAML documents, each a job; or a batch script with ``#SBATCH`` lines.

Relative paths stand on the directory of the file. Every mistake names file, line, column and field.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from corral.model.ask import JobAsk
from corral.model.errors import MissingField
from corral.wire.document import Checked, Problems, printable
from corral.wire.request import asks_of_nodes
from corral.wire.textfile import decoded, read_bytes


def parse_job_text(
    data: bytes | str, *, source: str = "<text>", base: str | None = None, check_paths: bool = True
) -> list[JobAsk]:
    """Return the jobs of a YAML text. ``base`` is what relative paths stand on (default: they are refused).

    Raises as :func:`load_any` does.
    """
    from corral.wire.yamltext import yaml_nodes

    text = decoded(data.encode(errors="surrogatepass") if isinstance(data, str) else data, source)
    problems = Problems(Checked(source, base, check_paths))
    roots = [root for root in yaml_nodes(text, source, problems) if root.kind != "null"]
    if not roots:
        raise MissingField("holds no job", where=source, hint="say at least: run: COMMAND")
    return list(asks_of_nodes(roots, problems))


def load_any(
    path: str | os.PathLike[str],
    *,
    environment: Mapping[str, str] | None = None,
    queues: Callable[[], Collection[str]] | None = None,
    check_paths: bool = True,
) -> tuple[list[JobAsk], tuple[str, ...]]:
    """Return the jobs of a YAML file or of a batch script, and one line for each option that has no effect here.

    A batch script begins with ``#!``; it inherits ``environment`` and runs in the current directory, as with Slurm.
    ``queues`` tells which of its partitions are queues (see :func:`corral.wire.sbatch.parse_sbatch`).

    Raises ``JobFileUnreadable`` for what cannot be read, is larger than 1 MiB, not UTF-8 or not YAML; and for the first
    mistake ``UnknownField``, ``InvalidField``, ``MissingField``, ``DuplicateName``, ``DependencyCycle``,
    ``PathNotFound`` or ``PathUnsafe``, with all others in the error's ``also``.
    """
    from corral.wire.sbatch import is_batch_script, parse_sbatch

    data = read_bytes(path)
    name = os.fspath(path)
    source = printable(name)
    if not is_batch_script(data):
        base = str(Path(name).absolute().parent)
        return parse_job_text(data, source=source, base=base, check_paths=check_paths), ()
    script = parse_sbatch(
        data,
        source=source,
        name=Path(name).name,
        here=str(Path.cwd()),
        environment=environment,
        queues=queues,
        check_paths=check_paths,
    )
    return [script.ask], script.ignored
