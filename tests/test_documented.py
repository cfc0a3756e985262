"""Every error code, setting, command and flag is documented: the committed pages equal what the objects say."""

from __future__ import annotations

import pytest

from scripts.generate_reference import PAGES, REFERENCE


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_what_the_code_says(name: str) -> None:
    path = REFERENCE / name
    assert path.exists(), f"docs/reference/{name} is missing: run make docs"
    assert path.read_text() == PAGES[name](), f"docs/reference/{name} is out of date: run make docs"


def test_every_error_code_is_there_and_means_one_thing() -> None:
    from corral.model import errors

    classes = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.CorralError)
    ]
    codes = [kind.__dict__.get("code") for kind in classes]
    assert None not in codes, "an error class without a code of its own"
    assert len(set(codes)) == len(codes)
    text = (REFERENCE / "errors.md").read_text()
    assert [code for code in codes if f"| `{code}` |" not in text] == []


def test_every_setting_is_there() -> None:
    from corral.runtime.settings import Settings

    text = (REFERENCE / "settings.md").read_text()
    assert [name for name in Settings.model_fields if f"| `{name}` |" not in text] == []
