"""`python -m corral` is the command `corral`."""

from __future__ import annotations

if __name__ == "__main__":
    from corral.cli import main

    main()
