"""Converts the CSV files of KuaiRand-Pure to Parquet; README.md says where they come from.

    python data/kuairand/prepare.py --raw KuaiRand-Pure/data --out data/kuairand/log/kuairand_pure

History holds only what was known at an exposure: plays that had ended before it.
"""

import argparse
import shutil
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from edorec.errors import InputError
from edorec.output_folder import output_folder

FILES = {
    "log": "log_standard_*.csv",
    "person": "user_features_pure.csv",
    "video": "video_features_basic_pure.csv",
}
# Local days of each split, the last one included.
SPLITS = {
    "train": (20220425, 20220504),
    "valid": (20220505, 20220506),
    "test": (20220507, 20220508),
}
LABELS = {
    "click": "is_click",
    "long_view": "long_view",
    "like": "is_like",
    "follow": "is_follow",
    "comment": "is_comment",
    "forward": "is_forward",
    "hate": "is_hate",
    "profile_enter": "is_profile_enter",
}
PERSON = {
    "user_active_degree": "VARCHAR",
    "follow_user_num_range": "VARCHAR",
    "fans_user_num_range": "VARCHAR",
    "friend_user_num_range": "VARCHAR",
    "register_days_range": "VARCHAR",
    "is_live_streamer": "INTEGER",
    "is_video_author": "INTEGER",
    "follow_user_num": "BIGINT",
    "fans_user_num": "BIGINT",
    "friend_user_num": "BIGINT",
    "register_days": "BIGINT",
    **{f"onehot_feat{i}": "INTEGER" for i in range(18)},
}

# The views of the CSV files hold text: no type is guessed from their values.
PREPARE = """
CREATE TABLE film AS
SELECT CAST(video_id AS BIGINT) AS video_id, CAST(author_id AS BIGINT) AS author_id,
       video_type, upload_type, CAST(music_id AS BIGINT) AS music_id,
       CAST(music_type AS INTEGER) AS music_type,
       CAST(CAST(server_width AS DOUBLE) / nullif(CAST(server_height AS DOUBLE), 0) AS FLOAT)
           AS aspect,
       CAST(upload_dt AS DATE) AS upload_day,
       coalesce(CAST(string_split(tag, ',') AS BIGINT[]), []) AS tags
FROM video;

CREATE TABLE exposure AS
SELECT DISTINCT ON (user_id, video_id, time_ms)
       CAST(user_id AS BIGINT) AS user_id, CAST(video_id AS BIGINT) AS video_id,
       CAST(time_ms AS BIGINT) AS time_ms, CAST(date AS INTEGER) AS date,
       CAST(hourmin AS INTEGER) // 100 AS hour, CAST(tab AS INTEGER) AS tab,
       CAST(duration_ms AS BIGINT) AS duration_ms, {labels},
       CAST(play_time_ms AS BIGINT) AS label_play_time_ms
FROM log
ORDER BY ALL;

-- One row for each moment at which plays of a user end: all that has ended by then.
CREATE TABLE past AS
SELECT user_id, time_ms + label_play_time_ms AS end_ms, count(*) OVER ended AS seen,
       list_slice(list({{'video': video_id, 'author': author_id}})
                  FILTER (label_long_view = 1) OVER ended, -20, -1) AS plays
FROM exposure LEFT JOIN film USING (video_id)
WINDOW ended AS (PARTITION BY user_id ORDER BY time_ms + label_play_time_ms, video_id, time_ms
                 ROWS UNBOUNDED PRECEDING)
QUALIFY row_number() OVER (PARTITION BY user_id, time_ms + label_play_time_ms
                           ORDER BY video_id DESC, time_ms DESC) = 1;
"""
ROWS = """
SELECT user_id, video_id, time_ms, date, hour, CAST(isodow(day) - 1 AS INTEGER) AS weekday, tab,
       author_id, video_type, upload_type, music_id, music_type, duration_ms, aspect,
       CAST(day - upload_day AS INTEGER) AS age_days, {person}, coalesce(tags, []) AS tags,
       list_transform(history, lambda play: play.video) AS hist_video,
       list_transform(history, lambda play: play.author) AS hist_author,
       CAST(len(history) AS INTEGER) AS hist_len, CAST(coalesce(seen, 0) AS INTEGER) AS seen_before,
       COLUMNS('label_.*')
FROM (
    SELECT exposure.*, coalesce(plays, []) AS history, seen,
           CAST(strptime(CAST(date AS VARCHAR), '%Y%m%d') AS DATE) AS day
    FROM exposure ASOF LEFT JOIN past
    ON exposure.user_id = past.user_id AND exposure.time_ms > past.end_ms
    WHERE date BETWEEN {first} AND {last}
)
LEFT JOIN film USING (video_id)
LEFT JOIN (SELECT CAST(user_id AS BIGINT) AS user_id, {typed_person} FROM person) USING (user_id)
ORDER BY time_ms, user_id, video_id
"""


def main() -> None:
    """Parses the command line and converts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--raw", type=Path, required=True, help="folder of the CSV files")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "log" / "kuairand_pure")
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
    files = {name: sorted(map(str, raw.glob(pattern))) for name, pattern in FILES.items()}
    for name, pattern in FILES.items():
        if not files[name]:
            raise InputError(
                f"{raw}: no {pattern}; data/kuairand/README.md says where to get KuaiRand-Pure"
            )
    labels = ", ".join(f"CAST({c} AS TINYINT) AS label_{name}" for name, c in LABELS.items())
    typed_person = ", ".join(f"CAST({c} AS {kind}) AS {c}" for c, kind in PERSON.items())
    rows = {}
    with output_folder(out, tuple(f"{split}.parquet" for split in SPLITS)) as folder:
        spill = {"temp_directory": str(folder / "spill")}
        try:
            with duckdb.connect(config=spill) as database:
                for name, paths in files.items():
                    database.read_csv(paths, header=True, all_varchar=True).create_view(name)
                database.execute(PREPARE.format(labels=labels))
                for split, (first, last) in SPLITS.items():
                    path = folder / f"{split}.parquet"
                    query = ROWS.format(
                        person=", ".join(PERSON), typed_person=typed_person, first=first, last=last
                    )
                    database.sql(query).write_parquet(str(path))
                    rows[split] = pq.read_metadata(path).num_rows
        except duckdb.Error as error:
            reason = str(error).partition("\n\nLINE")[0]  # leaves out the query
            raise InputError(f"{raw}: {reason}") from error
        shutil.rmtree(folder / "spill", ignore_errors=True)
    return rows


if __name__ == "__main__":
    main()
