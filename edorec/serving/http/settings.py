"""Settings of a server: the options of ``edorec serve``."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ServeSettings:
    """What one server does.

    Attributes:
        path: folder of an exported model, or a symlink to one.
        name: of the model, in paths of the Open Inference Protocol.
        host: address to listen on.
        port: port to listen on, 0 for any free one.
        num_threads: threads of the arithmetic within a batch.
        max_body_bytes: largest body of a request.
        max_rows: most rows of a request.
        batch_rows: most rows of a batch of several requests.
        queue_rows: most rows that may wait.
        timeout_seconds: for reading a body, and again for its scores.
        drain_seconds: how long the server goes on accepting after SIGTERM while it says that it is
            not ready.
        watch_seconds: pause between looks at ``path``.
        verify: read the tables of each version against their checksums.
        log_requests: a line in the log for each request.
    """

    path: Path
    name: str
    host: str
    port: int
    num_threads: int
    max_body_bytes: int
    max_rows: int
    batch_rows: int
    queue_rows: int
    timeout_seconds: float
    drain_seconds: float
    watch_seconds: float
    verify: bool
    log_requests: bool
