"""What a test needs from the machine: missing, it skips on a desk and fails in CI, naming the Debian package."""

from __future__ import annotations

import importlib
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest


def in_ci() -> bool:
    """Tell whether this run must have everything (``CI=true``)."""
    return os.environ.get("CI", "").lower() in {"1", "true"}


def unmet(what: str) -> NoReturn:
    """End the test: a failure in CI, a skip elsewhere."""
    if in_ci():
        pytest.fail(f"CI must have what this test needs: {what}", pytrace=False)
    pytest.skip(what)


def root() -> None:
    """Need to be root."""
    if os.geteuid() != 0:
        unmet("needs root")


def not_root() -> None:
    """Need not to be root: permission bits do not stop root. Skips in CI too, where tests run as root."""
    if os.geteuid() == 0:
        pytest.skip("root may do what this test expects to be refused")


def program(name: str, *, package: str | None = None) -> str:
    """Need a program; return its path. ``package`` is the Debian package that brings it."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))
    if found is None:
        unmet(f"needs the program {name}: apt-get install {package or name}")
    return found


def module(name: str, *, extra: str) -> ModuleType:
    """Need an optional Python module; return it. ``extra`` is the extra of corral that brings it."""
    try:
        return importlib.import_module(name)
    except ImportError:
        unmet(f"needs the module {name}: pip install 'corral[{extra}]'")


def gpu() -> None:
    """Need an NVIDIA GPU. Skips in CI too: the project's CI has none, and the marker `gpu` selects these tests."""
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("needs an NVIDIA GPU and its driver")
