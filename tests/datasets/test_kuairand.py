"""KuaiRand-Pure's CSV files, on lines made by hand."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from edorec.config import load_config
from edorec.data.prepare import check_schema

SCRIPT = Path(__file__).parents[2] / "data" / "kuairand" / "prepare.py"
DAY_MS = 24 * 3600 * 1000
START_MS = 1650816000000  # 2022-04-25 00:00 in China
FLAGS = ["is_click", "is_like", "is_follow", "is_comment", "is_forward", "is_hate", "long_view"]
USER = [
    "user_active_degree",
    "is_live_streamer",
    "is_video_author",
    "follow_user_num",
    "follow_user_num_range",
    "fans_user_num",
    "fans_user_num_range",
    "friend_user_num",
    "friend_user_num_range",
    "register_days",
    "register_days_range",
] + [f"onehot_feat{i}" for i in range(18)]


def exposure(user: int, video: int, day: int, ms: int, **flags: Any) -> dict[str, Any]:
    date = 20220425 + day if day <= 5 else 20220501 + day - 6
    row = {"user_id": user, "video_id": video, "date": date, "hourmin": 1830}
    row |= {"time_ms": START_MS + day * DAY_MS + ms, **dict.fromkeys(FLAGS, 0)}
    row |= {"play_time_ms": 5000, "duration_ms": 9000, "is_profile_enter": 0, "tab": 1}
    return row | flags


EXPOSURES = [
    exposure(1, 7, 0, 1000, long_view=1, is_click=1),  # ends at 6000
    exposure(1, 8, 0, 5999),
    exposure(1, 8, 0, 6000),
    exposure(1, 9, 0, 6001, long_view=1),  # ends at 11001
    exposure(1, 9, 0, 6001, long_view=1),  # the log repeats it
    exposure(1, 7, 10, 0, is_like=1),
    exposure(2, 7, 12, 0),
]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = [",".join(rows[0])] + [",".join(map(str, row.values())) for row in rows]
    path.write_text("\n".join(lines) + "\n")


def write_raw(raw: Path) -> None:
    write_csv(raw / "log_standard_4_08_to_4_21_pure.csv", EXPOSURES[:2])
    write_csv(raw / "log_standard_4_22_to_5_08_pure.csv", EXPOSURES[2:])
    user = dict.fromkeys(USER, 3) | {"user_active_degree": "full_active"}
    write_csv(raw / "user_features_pure.csv", [{"user_id": u, **user} for u in (1, 2)])
    video = {"video_type": "NORMAL", "upload_dt": "2022-04-20", "upload_type": "ShortImport"}
    video |= {"server_width": 720, "server_height": 1280, "music_id": 5, "music_type": "9.0"}
    tags = {7: "11", 8: '"3,4"', 9: ""}
    write_csv(
        raw / "video_features_basic_pure.csv",
        [{"video_id": v, "author_id": 100 + v, **video, "tag": tags[v]} for v in (7, 8, 9)],
    )


def convert(raw: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--raw", str(raw), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_history_holds_plays_that_had_ended_before(tmp_path: Path) -> None:
    write_raw(tmp_path)
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    train, valid, test = (
        pq.read_table(tmp_path / "log" / f"{name}.parquet").to_pylist()
        for name in ("train", "valid", "test")
    )
    assert [row["hist_video"] for row in train] == [[], [], [], [7]]
    assert train[3]["hist_author"] == [107]
    assert [row["seen_before"] for row in train] == [0, 0, 0, 1]
    assert valid[0]["hist_video"] == [7, 9]
    assert (valid[0]["hist_len"], valid[0]["seen_before"]) == (2, 4)
    assert test[0]["hist_video"] == []
    assert [row["tags"] for row in train[:2]] == [[11], [3, 4]]
    assert train[3]["tags"] == []
    assert (train[0]["author_id"], train[0]["music_type"]) == (107, 9)
    assert (train[0]["hour"], train[0]["weekday"], train[0]["age_days"]) == (18, 0, 5)
    assert train[0]["aspect"] == 0.5625
    assert (train[0]["label_click"], valid[0]["label_like"]) == (1, 1)


def test_the_result_has_every_column_of_the_configuration(tmp_path: Path) -> None:
    write_raw(tmp_path)
    convert(tmp_path, tmp_path / "log")
    config = load_config("kuairand", [f"data.folder={tmp_path / 'log'}"]).config
    check_schema(data=config.data, features=config.features, tasks=config.tasks)


@pytest.mark.skipif("EDOREC_DATA" not in os.environ, reason="EDOREC_DATA is not set")
def test_columns_and_types_are_those_of_the_real_log(tmp_path: Path) -> None:
    write_raw(tmp_path)
    convert(tmp_path, tmp_path / "log")
    folders = (tmp_path / "log", Path(os.environ["EDOREC_DATA"]) / "kuairand_pure")
    made, real = (pq.read_schema(folder / "train.parquet") for folder in folders)
    assert [(field.name, field.type) for field in made] == [(f.name, f.type) for f in real]


def test_history_ends_with_the_latest_20_plays(tmp_path: Path) -> None:
    write_raw(tmp_path)
    plays = [exposure(1, video, 1, 10 * video, long_view=1) for video in range(30, 54)]
    together = [exposure(1, video, 2, -video, play_time_ms=video, long_view=1) for video in (8, 7)]
    rows = [*plays, *together, exposure(1, 9, 12, 0)]
    write_csv(tmp_path / "log_standard_4_22_to_5_08_pure.csv", rows)
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 0, done.stderr
    test = pq.read_table(tmp_path / "log" / "test.parquet").to_pylist()
    assert test[0]["hist_video"] == [*range(36, 54), 7, 8]
    assert test[0]["hist_author"] == [None] * 18 + [107, 108]


def test_a_wrong_value_is_named(tmp_path: Path) -> None:
    write_raw(tmp_path)
    write_csv(tmp_path / "log_standard_4_22_to_5_08_pure.csv", [exposure(1, 7, 0, 0, tab="main")])
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 2
    assert done.stderr.startswith(f"{tmp_path}: Conversion Error: Could not convert string 'main'")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("log*.new"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    done = convert(tmp_path, tmp_path / "log")
    assert done.returncode == 2
    assert f"{tmp_path}: no log_standard_*.csv" in done.stderr
