"""`python -m node` is `millpond`."""

from __future__ import annotations

import sys

from node.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
