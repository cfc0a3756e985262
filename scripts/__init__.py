"""Scripts of the repository, run with `python -m scripts.NAME` from its root."""
