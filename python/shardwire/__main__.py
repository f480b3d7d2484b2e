# SPDX-License-Identifier: Apache-2.0
"""The command of wheels that contain it: `shardwire doctor`, or `python -m shardwire doctor`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the command, with the arguments of this process."""
    command = Path(__file__).with_name("bin") / "shardwire"
    if not command.exists():
        sys.exit(f"shardwire: there is no {command}: pip built this package from a clone, and the clone's build has the command")
    os.execv(command, ["shardwire", *sys.argv[1:]])


if __name__ == "__main__":
    main()
