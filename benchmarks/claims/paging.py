"""S5, S6 and S9: FP32 tables on disk, of which a part is in memory, against all of them in memory.

The claims: peak memory 1/2.7 at 15 % less speed (S5); vocabularies three times as large as memory,
where the metric must be the same to the last digit because paging changes nothing (S6); pages of
512 to 2048 rows are best (S9).
"""

import statistics

from benchmarks.claims.row import Options, Row, side, train_pairs, trained
from benchmarks.figures import Figure
from edorec.config import load_config

CONFIG = "ecommerce"
FP32 = ["memory.format=fp32"]
PAGE_ROWS = (64, 512, 2048, 8192)
DEFAULT = 64  # rows of a page


def chunks(options: Options) -> Row:
    """S5."""
    row, speed = _paged("S5 paged tables, shop", 2.7, options=options, page_rows=DEFAULT)
    row.figures.append(Figure(f"{row.name}: speed of memory's", speed, "ratio", 1 / 1.15))
    return row


def larger_than_memory(options: Options) -> Row:
    """S6, on the CPU."""
    row, speed = _paged("S6 vocabulary 3x memory, shop", 3.0, options=options, page_rows=DEFAULT)
    row.figures.append(Figure(f"{row.name}: speed of memory's", speed, "ratio"))
    return row


def page_rows(options: Options) -> Row:
    """S9."""
    one = Options(seeds=options.seeds[:1], num_threads=options.num_threads)
    name = "S9 rows of a page, shop"
    rows = [_paged(name, 2.7, options=one, page_rows=number) for number in PAGE_ROWS]
    row, _ = rows[0]
    figures = [
        Figure(f"{name}: {number}: speed of memory's", speed, "ratio")
        for number, (_, speed) in zip(PAGE_ROWS, rows, strict=True)
    ]
    return Row(name, row.baseline, row.edorec, figures)


def _paged(name: str, ratio: float, *, options: Options, page_rows: int) -> tuple[Row, float]:
    """Tables of ``ratio`` times the memory that they may have, and the median ratio of speed."""
    both = [f"train.seed={options.seeds[0]}", f"train.num_threads={options.num_threads}"]
    total = trained(load_config(CONFIG, [*FP32, *both]).config)["memory"]["total_bytes"]
    disk = f"{{page_rows: {page_rows}, resident: {int(total / ratio)}B}}"
    paged = [*FP32, "memory.placement=disk", f"memory.disk={disk}"]
    pairs = train_pairs(CONFIG, FP32, paged, options=options)
    peaks = [pair[1]["memory"]["paging"]["peak_resident_bytes"] for pair in pairs]
    baseline, edorec = (
        side([pair[k] for pair in pairs], size=size, unit="bytes")
        for k, size in ((0, total), (1, max(peaks)))
    )
    losses = [
        max(abs(a["tasks"][t]["logloss"] - b["tasks"][t]["logloss"]) for t in a["tasks"])
        for a, b in pairs
    ]
    speeds = [
        b["speed"]["train_rows_per_second"] / a["speed"]["train_rows_per_second"] for a, b in pairs
    ]
    return Row(
        name,
        baseline,
        edorec,
        [
            Figure(
                f"{name}: memory of tables, of all", max(peaks) / total, "ratio", at_most=1 / ratio
            ),
            Figure(f"{name}: largest difference of logloss", max(losses), "", at_most=0),
        ],
    ), statistics.median(speeds)
