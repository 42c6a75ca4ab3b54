"""Starts the processes of a run on this machine, as ``torchrun --nproc-per-node`` does."""

import logging
import os
import signal
import sys
import uuid
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

PACKAGE_FOLDER = Path(__file__).parent.parent


def launch(num_processes: int, arguments: list[str]) -> int:
    """Runs ``edorec ARGUMENTS`` in several processes and returns the exit code.

    The one that fails has shown its error, unless a signal ended it, which is said here.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    paths = [str(PACKAGE_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        elastic_launch(launch_config(num_processes), sys.executable)("-m", "edorec.cli", *arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            print(f"process {rank} of {num_processes} was ended by {name}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 1
    return 0


def launch_config(num_processes: int) -> LaunchConfig:
    """Processes on this machine, with a rendezvous at a free port and no second try."""
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.2,
    )
