"""Converts a MovieLens release to Parquet; README.md says where it comes from.

    python data/movielens/prepare.py --raw ml-32m --out data/movielens/log

Takes the CSV files of 20M, 25M, 32M and latest, and the ``::`` files of 1M and 10M.
"""

import argparse
import shutil
import sys
from pathlib import Path

import duckdb

from edorec.errors import InputError
from edorec.output_folder import output_folder

# History: films this user liked in strictly earlier seconds, the latest 20, most recent last.
QUERY = """
WITH film AS (
    SELECT movie_id,
           try_cast(regexp_extract(title, '\\((\\d{{4}})\\)\\s*$', 1) AS INTEGER) AS year,
           CASE WHEN genres IN ('', '(no genres listed)') THEN []
                ELSE string_split(genres, '|') END AS genres
    FROM {movies}
),
rating AS (SELECT user_id, movie_id, rating, time_s FROM {ratings})
SELECT user_id, movie_id, genres, year,
       list_slice(list(CASE WHEN rating >= 4 THEN movie_id END) FILTER (rating >= 4) OVER earlier,
                  -20, -1) AS hist_movie,
       CAST(hour(make_timestamp(time_s * 1000000)) AS INTEGER) AS hour,
       CAST(isodow(make_timestamp(time_s * 1000000)) - 1 AS INTEGER) AS weekday,
       time_s,
       CAST(rating >= 4 AS TINYINT) AS label_like
FROM rating LEFT JOIN film USING (movie_id)
WINDOW earlier AS (
    PARTITION BY user_id ORDER BY time_s RANGE BETWEEN {history_s} PRECEDING AND 1 PRECEDING
)
ORDER BY time_s, user_id, movie_id
"""
YEARS_S = 40 * 366 * 24 * 3600  # longer than any release
COLUMNS = {
    "ratings": ("user_id BIGINT, movie_id BIGINT, rating DOUBLE, time_s BIGINT", 4),
    "movies": ("movie_id BIGINT, title VARCHAR, genres VARCHAR", 3),
}
SPLITS = {"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)}


def main() -> None:
    """Parses the command line and converts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--raw", type=Path, required=True, help="folder of the release")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "log")
    args = parser.parse_args()
    try:
        rows = convert(args.raw, args.out)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    for split, num_rows in rows.items():
        print(f"{split:6}{num_rows:>13,} rows")


def convert(raw: Path, out: Path) -> dict[str, int]:
    """Writes ``out``/train.parquet, valid.parquet and test.parquet; returns their rows.

    Raises:
        InputError: if a file is missing or cannot be read.
    """
    rows = {}
    with output_folder(out, tuple(f"{split}.parquet" for split in SPLITS)) as folder:
        with duckdb.connect(config={"temp_directory": str(folder / "spill")}) as database:
            sources = {name: _load(database, raw, name) for name in COLUMNS}
            query = QUERY.format(**sources, history_s=YEARS_S)
            database.execute(
                f"CREATE TABLE log AS SELECT *, row_number() OVER () AS row FROM ({query})"
            )
            [(total,)] = database.execute("SELECT count(*) FROM log").fetchall()
            for split, (start, end) in SPLITS.items():
                first, last = round(start * total), round(end * total)
                rows[split] = last - first
                database.sql(
                    f"SELECT * EXCLUDE row FROM log WHERE row > {first} AND row <= {last} "
                    "ORDER BY row"
                ).write_parquet(str(folder / f"{split}.parquet"))
        shutil.rmtree(folder / "spill", ignore_errors=True)
    return rows


def _load(database: duckdb.DuckDBPyConnection, raw: Path, name: str) -> str:
    """Loads ratings or movies into a table of that name."""
    types, num_fields = COLUMNS[name]
    names = [column.split()[0] for column in types.split(", ")]
    database.execute(f"CREATE TABLE {name} ({types})")
    csv, dat = raw / f"{name}.csv", raw / f"{name}.dat"
    try:
        if csv.exists():
            database.execute(f"INSERT INTO {name} SELECT * FROM read_csv('{csv}', header = true)")
        elif dat.exists():
            # No quoting, and a delimiter that no line holds: each line is one string to split.
            fields = ", ".join(f"part[{i + 1}] AS {column}" for i, column in enumerate(names))
            database.execute(
                f"INSERT INTO {name} SELECT {fields} FROM ("
                f"SELECT string_split(line, '::') AS part FROM read_csv('{dat}', header = false, "
                f"columns = {{'line': 'VARCHAR'}}, delim = '\\x01', quote = '', escape = '', "
                f"encoding = 'latin-1') WHERE len(string_split(line, '::')) = {num_fields})"
            )
        else:
            raise InputError(
                f"{raw}: neither {csv.name} nor {dat.name} is there; data/movielens/README.md says "
                "where to get a release"
            )
    except duckdb.Error as error:
        raise InputError(f"{csv if csv.exists() else dat}: {error}") from error
    return name


if __name__ == "__main__":
    main()
