"""What ``edorec init`` learns of a log: files by split, and figures of each column on a sample."""

import glob
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb

from edorec.data.source import SUFFIXES, find_files, open_file
from edorec.errors import InputError

SAMPLE_ROWS = 200_000
SAMPLE_FILES = 8
SPLIT_NAMES = {
    "train": ("train", "training"),
    "valid": ("valid", "validation", "val", "dev"),
    "test": ("test", "testing", "holdout"),
}

Kind = Literal["int", "float", "text", "bool", "time", "list_int", "list_text", "other"]


@dataclass(frozen=True)
class Splits:
    """Files of a log.

    Attributes:
        folder: absolute folder that the names below start from.
        names: by split (train, valid, test), what the configuration says: a file, folder or glob.
        train_files: the training files.
    """

    folder: Path
    names: dict[str, str]
    train_files: list[Path]


@dataclass(frozen=True)
class Column:
    """Figures of one column on the sample.

    Attributes:
        type: DuckDB's name of its type.
        rows: sampled rows; ``nulls`` of them are null.
        distinct: different values that are not null; for lists, different items.
        low, high, mean, skewness: of numbers (finite ones); None where there are none.
        length: mean length of a text or list.
    """

    name: str
    type: str
    kind: Kind
    rows: int
    nulls: int
    distinct: int
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    skewness: float | None = None
    length: float = 0.0

    @property
    def is_binary(self) -> bool:
        """Whether it holds 0 and 1 (or false and true) and nothing else."""
        if self.kind == "bool":
            return self.distinct > 0
        return self.distinct in (1, 2) and {self.low, self.high} <= {0.0, 1.0}


class Sample:
    """A sample of rows in an in-memory DuckDB table.

    Attributes:
        columns: figures of every column, in the order of the files.
        repeated: names that several columns share; none of them is among ``columns``.
    """

    def __init__(self, files: list[Path]) -> None:
        """Reads up to ``SAMPLE_ROWS`` rows from files spread evenly over the log.

        Raises:
            InputError: a file cannot be read, or there are no rows.
        """
        chosen = files[:: math.ceil(len(files) / SAMPLE_FILES)]
        names = open_file(chosen[0]).names
        self.repeated = sorted({name for name in names if names.count(name) > 1})
        self._connection = duckdb.connect(config={"threads": 2})
        part = f"(SELECT * FROM read_parquet(?) LIMIT {SAMPLE_ROWS // len(chosen)})"
        query = " UNION ALL BY NAME ".join([part] * len(chosen))
        try:
            self._connection.execute(f"CREATE TABLE sample AS {query}", [str(f) for f in chosen])
        except duckdb.Error as error:
            raise InputError(f"{files[0]}: cannot be read: {_first_line(error)}") from error
        described = self._connection.execute("DESCRIBE sample").fetchall()
        self.rows = int(self._one("SELECT count(*) FROM sample")[0])
        if not self.rows:
            raise InputError(f"{files[0]}: the training files hold no rows")
        self.columns = [
            self._column(name, type_)
            for name, type_, *_ in described
            if name in names and name not in self.repeated
        ]

    def overlap(self, items: Column, scalar: Column) -> tuple[float, float]:
        """How far the items of a list column are values of a scalar column.

        Returns:
            The share of the different items that are values, and the same over the union of both.
        """
        query = f"""
            WITH items AS (SELECT DISTINCT unnest({_quoted(items.name)}) AS id FROM sample),
                 ids AS (SELECT DISTINCT {_quoted(scalar.name)} AS id FROM sample)
            SELECT count(*) FROM items JOIN ids USING (id)"""
        both = int(self._one(query)[0])
        return both / max(items.distinct, 1), both / max(items.distinct + scalar.distinct - both, 1)

    def quantile(self, column: Column, q: float) -> Any:
        """The value below which a share ``q`` of the rows lies."""
        return self._one(f"SELECT quantile_disc({_quoted(column.name)}, {q}) FROM sample")[0]

    def _column(self, name: str, type_: str) -> Column:
        kind, column = _kind(type_), _quoted(name)
        distinct = f"count(DISTINCT {column})"
        if kind in ("list_int", "list_text"):
            distinct = (
                f"(SELECT count(DISTINCT id) FROM (SELECT unnest({column}) AS id FROM sample))"
            )
        elif kind == "other":
            distinct = "0"
        length = f"avg(len({column}))" if kind in ("text", "list_int", "list_text") else "0"
        counts = self._one(f"SELECT count({column}), {distinct}, {length} FROM sample")
        numbers: tuple[Any, ...] = (None, None, None, None)
        if kind in ("int", "float", "bool"):
            numbers = self._one(
                "SELECT min(x), max(x), avg(x), skewness(x) "
                f"FROM (SELECT CAST({column} AS DOUBLE) AS x FROM sample) "
                "WHERE isfinite(x) AND abs(x) < 1e100"
            )
        return Column(
            name,
            type_,
            kind,
            rows=self.rows,
            nulls=self.rows - int(counts[0]),
            distinct=int(counts[1]),
            low=numbers[0],
            high=numbers[1],
            mean=numbers[2],
            skewness=numbers[3],
            length=float(counts[2] or 0),
        )

    def _one(self, query: str) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._connection.execute(query).fetchone()
        assert row is not None
        return row


def find_splits(data: str) -> Splits:
    """The files of a log and how they are split.

    Args:
        data: a Parquet file, a folder, or a glob.

    Raises:
        InputError: there are no Parquet files, or no such file or folder.
    """
    path = Path(data)
    if path.is_file():
        folder, names = path.resolve().parent, {"train": path.name}
    elif path.is_dir():
        names = {
            split: entry.name
            for split, known in SPLIT_NAMES.items()
            for entry in sorted(path.iterdir())
            if (entry.stem if entry.suffix in SUFFIXES else entry.name).lower() in known
        }
        folder, names = path.resolve(), names if "train" in names else {"train": "."}
    else:
        parts = Path(data).absolute().parts
        fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
        folder, names = Path(*parts[:fixed]), {"train": str(Path(*parts[fixed:]))}
    return Splits(folder, names, find_files(names["train"], folder=str(folder), key="DATA"))


def _kind(type_: str) -> Kind:
    """The kind of a DuckDB type name."""
    base = type_.partition("[")[0]
    scalar: Kind = "other"
    if base in ("FLOAT", "DOUBLE") or base.startswith("DECIMAL"):
        scalar = "float"
    elif base.endswith("INT") or base.endswith("INTEGER"):
        scalar = "int"
    elif base == "VARCHAR":
        scalar = "text"
    elif base == "BOOLEAN":
        scalar = "bool"
    elif base == "DATE" or base.startswith("TIME"):
        scalar = "time"
    match type_.count("["), scalar:
        case 0, _:
            return scalar
        case 1, "int":
            return "list_int"
        case 1, "text":
            return "list_text"
    return "other"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
