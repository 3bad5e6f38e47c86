"""``python -m benchmarks.replay_again RUN_ID replay LOG ...``: the command, with the run id that another run had.

To compare reports. The command itself draws a fresh id: two runs with one id over two logs would show what differs.
"""

from __future__ import annotations

import sys

from dp_transforms.cli import main as cli
from dp_transforms.cli import replay

if __name__ == "__main__":
    replay.fresh_run_id = lambda: sys.argv[1]
    sys.exit(cli.main(sys.argv[2:]))
