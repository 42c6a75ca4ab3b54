"""What a killed process leaves half written in the cache."""

import signal
import subprocess
import sys
from pathlib import Path

from edorec.data.cache import new_folder
from tests.data.logs import prepare_log, write

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from edorec.data.prepare import prepare
from tests.data.logs import configs

def die(what, done, total):
    os.kill(os.getpid(), signal.SIGKILL)

options = configs(Path(sys.argv[1]), sparse={"item": None}, train="other.parquet")
prepare(**options, vocabularies={}, on_progress=die)
"""


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    for name in ("train", "other"):
        write(tmp_path / f"{name}.parquet", {"item": [1, 2, 3]})
    cache = tmp_path / "cache"
    complete = prepare_log(tmp_path, sparse={"item": None}).folder
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    killed = subprocess.run(command, cwd=ROOT, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (path for path in cache.iterdir() if path != complete)
    assert any(left.iterdir())
    process, rest = left.name.removeprefix(".new-").split("-", 1)
    elsewhere = cache / f".new-{process}-other-{rest}"  # of a process of another machine
    elsewhere.mkdir()
    with new_folder(cache / "live") as live:
        assert prepare_log(tmp_path, sparse={"item": None}).reused
        assert set(cache.iterdir()) == {complete, elsewhere, live}
