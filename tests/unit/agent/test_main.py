from __future__ import annotations

import json
import os
import subprocess
import sys

HEAVY = {"pydantic", "fastapi", "httpx", "sqlalchemy", "alembic", "numpy", "rich", "typer", "uvicorn", "yaml"}


def test_an_agent_loads_nothing_heavy() -> None:
    probe = "import json, sys; import corral.agent.main; print(json.dumps(sorted(sys.modules)))"
    said = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=True, env={**os.environ}).stdout
    loaded = {name.partition(".")[0] for name in json.loads(said)}
    assert "msgspec" in loaded
    assert loaded & HEAVY == set()
