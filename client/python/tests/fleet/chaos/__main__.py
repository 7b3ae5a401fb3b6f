"""`./dev fleet`, once all is built; flags.py says what it does."""

import json
import os
import sys
import tempfile

from chaos import NODES, flags, run
from chaos.machines import Machines

from seine_kv.fleet import Fleet


def main():
    arguments = flags.parse()
    result = os.fdopen(os.dup(1), "w")  # what Ray prints is not for whoever reads this
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        machines = Machines(NODES, folder, "chaos")
        try:
            fleet = Fleet.start(
                NODES, "256MiB", name="chaos", listen=f"unix:{folder}", seined=arguments.seined,
                server_flags=["--log-level", "error", "--snapshots-dir", f"{folder}/snapshots"],
            )
            try:
                counts = run(fleet, arguments.sequences, 60 * arguments.minutes, arguments.seed, 5.0, machines=machines)
            finally:
                fleet.stop()
        finally:
            machines.shutdown()
    print(json.dumps(counts), file=result, flush=True)
    return 1 if counts["wrong"] or counts["unstated_errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
