"""The service files of the examples and of the documentation are read without a complaint."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from corral.wire.servicefile import load_services, parse_service_text

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "examples" / "service").glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_service_file_of_the_examples_is_read(file: Path) -> None:
    (spec,) = load_services(file)
    assert spec.replica.workdir == str(ROOT)


def test_the_service_file_of_the_documentation_is_read() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "serving.md").read_text(), re.DOTALL)
    (spec,) = parse_service_text(text, base="/", check_paths=False)
    assert (spec.name, spec.scaling.replicas_max, spec.traffic.drain_s) == ("chat", 8, 300)
