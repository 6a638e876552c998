"""`python -m tests.sim.nodes`: see `command`."""

import sys

from tests.sim.nodes.command import main

if __name__ == "__main__":
    sys.exit(main())
