"""Print the versions of uv.lock as pip constraints, so that plain pip installs what uv would.

Standard library only: `make setup` runs it before anything is installed.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def constraints(lock: str) -> list[str]:
    """Return one constraint for each registry package of the lock; a forked version carries its marker."""
    lines = []
    for package in tomllib.loads(lock)["package"]:
        if "registry" not in package["source"]:
            continue
        marker = " or ".join(package.get("resolution-markers", []))
        lines.append(f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else ""))
    return lines


if __name__ == "__main__":
    sys.stdout.write("\n".join(constraints(Path("uv.lock").read_text())) + "\n")
