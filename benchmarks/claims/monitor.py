"""S10: a run that makes FP32 tables smaller because memory runs short, against one that need not.

The claim is guidance: compress when less than 20 % of memory is free.
"""

from benchmarks.claims.row import (
    Options,
    Row,
    auc_figures,
    side,
    speed_figure,
    train_pairs,
    trained,
)
from benchmarks.figures import Figure
from edorec.config import load_config
from edorec.memory_use import own_memory_bytes

CONFIG = "ecommerce"
NAME = "S10 memory monitor, shop"
FP32 = ["memory.format=fp32"]
MARGIN = 0.002
ROOM = 1.05  # of what the run holds: always short


def row(options: Options) -> Row:
    """Trains both."""
    both = [f"train.seed={options.seeds[0]}", f"train.num_threads={options.num_threads}"]
    total = trained(load_config(CONFIG, [*FP32, *both]).config)["memory"]["total_bytes"]
    limit = int(ROOM * (own_memory_bytes() + total))
    monitor = (
        f"{{limit: {limit}B, compress_below: 0.2, interval: 1, min_seconds: 5, stop_below: 0}}"
    )
    pairs = train_pairs(CONFIG, FP32, [*FP32, f"memory.monitor={monitor}"], options=options)
    sizes = [pair[1]["memory"]["total_bytes"] for pair in pairs]
    baseline, edorec = (
        side([pair[k] for pair in pairs], size=size, unit="bytes")
        for k, size in ((0, total), (1, max(sizes)))
    )
    return Row(
        NAME,
        baseline,
        edorec,
        [
            Figure(f"{NAME}: bytes of tables, of FP32", max(sizes) / total, "ratio", at_most=0.5),
            *auc_figures(NAME, pairs, margin=MARGIN),
            speed_figure(NAME, pairs),
        ],
    )
