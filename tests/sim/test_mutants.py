"""Every planted bug dies: storms find it. ``python -m tests.sim.mutation`` shows how."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.sim.storm.storm import Storm
from tests.sim.mutation import PATCHES, hunks, hunt, plant

BUGS = sorted(PATCHES.glob("*.patch"))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("patch", BUGS, ids=lambda path: path.stem)
def test_a_planted_bug_is_found(patch: Path) -> None:
    found = hunt(patch)
    assert found.finding.startswith("AssertionError: "), f"{found.passed} storms passed and none found it"
    assert found.seed is not None
    assert Storm(found.seed).run().failure == "", "the storm that found it finds something without it, too"


def test_the_bugs_that_must_be_among_them_are() -> None:
    names = {patch.stem for patch in BUGS}
    assert {"agent-takes-any-epoch", "results-of-any-incarnation", "no-lease-margin"} <= names
    assert "acknowledges-without-the-lead" in names
    assert len(names) >= 8


PATCH = """What it is.

--- a/one.py
+++ b/one.py
@@ -1,3 +1,3 @@
 def f():
-    return 1
+    return 2
 # end
"""


def test_a_patch_is_applied_by_what_it_says_wherever_that_stands(tmp_path: Path) -> None:
    assert [(h.file, h.before, h.after) for h in hunks(PATCH)] == [
        ("one.py", "def f():\n    return 1\n# end\n", "def f():\n    return 2\n# end\n")
    ]
    (tmp_path / "one.py").write_text("import os\n\n\ndef f():\n    return 1\n# end\n")
    plant(PATCH, tmp_path)
    assert (tmp_path / "one.py").read_text() == "import os\n\n\ndef f():\n    return 2\n# end\n"


def test_a_patch_that_does_not_fit_any_more_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("def f():\n    return 3\n# end\n")
    with pytest.raises(ValueError, match="has changed where the bug is planted"):
        plant(PATCH, tmp_path)
