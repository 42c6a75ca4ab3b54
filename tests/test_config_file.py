"""Finding and reading configuration files, and overrides."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edorec import config_file
from edorec.config import RunConfig, load_config
from edorec.config_file import parse_key, show_key
from edorec.errors import ConfigError
from tests.config_samples import GOOD, problems, write


def test_keys_written_twice_are_errors_with_both_lines(tmp_path):
    path = write(
        tmp_path,
        GOOD + "  seed: 1\n  epochs: 2\n  seed: 3\n1: {}\nfeatures: {sparse: {user: {}}}\n",
    )
    lines = problems(path)
    assert lines[:3] == [
        "run.yaml:21: train.seed: written twice, first on line 19",
        "run.yaml:22: 1: a name must be text, put it in quotes",
        "run.yaml:23: features: written twice, first on line 5",
    ]


def test_b03_the_same_feature_twice(tmp_path):
    text = GOOD.replace("    user:\n", "    user:\n    user: {max_length: 3}\n")
    assert problems(write(tmp_path, text)) == [
        "run.yaml:8: features.sparse.user: written twice, first on line 7"
    ]


def test_yaml_faults_have_a_line(tmp_path):
    (line,) = problems(write(tmp_path, "data:\n  train: [a\ntasks: {}\n"))
    assert line.startswith("run.yaml:3: not valid YAML: ")
    (line,) = problems(write(tmp_path, "- a\n"))
    assert line == "run.yaml: wanted a mapping of sections, got ['a']"
    assert problems(write(tmp_path, GOOD), "train.epochs", "a..b=1", "'x=1", "train.seed=[1") == [
        "--set train.epochs: wanted KEY=VALUE, such as train.epochs=2",
        "--set a..b=1: empty part in 'a..b'",
        "--set 'x=1: wanted KEY=VALUE, such as train.epochs=2",
        "--set train.seed=[1: the value is not valid YAML: expected ',' or ']', but got "
        "'<stream end>'",
    ]


def test_an_override_with_a_key_twice(tmp_path):
    (line,) = problems(write(tmp_path, GOOD), "train={seed: 1, seed: 2}")
    assert line.startswith("--set train={seed: 1, seed: 2}: the value is not valid YAML: ")
    assert 'duplicate key "seed"' in line


def test_an_override_cannot_go_through_a_value(tmp_path):
    assert problems(write(tmp_path, GOOD), "tasks.click.label.x=1") == [
        "--set tasks.click.label.x=1: tasks.click.label holds 'label_click'; set it as a whole"
    ]


def test_the_later_override_wins_and_a_section_is_replaced_as_a_whole(tmp_path):
    path = write(tmp_path, GOOD)
    assert load_config(path, ["train.seed=1", "train.seed=2"]).config.train.seed == 2
    loaded = load_config(path, ["train={seed: 5}"])
    assert (
        loaded.config.train.learning_rate == RunConfig.model_fields["train"].default.learning_rate
    )
    assert loaded.provenance["train.learning_rate"] == "default"
    assert loaded.provenance["train.seed"] == "--set train={seed: 5}"


def test_numbers_are_yaml_1_2(tmp_path):
    overrides = ["train.learning_rate=1e-3", "data.shuffle_rows=1e6", "data.group=no", "name=on"]
    config = load_config(write(tmp_path, GOOD), overrides).config
    assert config.train.learning_rate == 0.001
    assert config.data.shuffle_rows == 1_000_000
    assert config.data.group == "no"
    assert config.name == "on"


def test_lookup_of_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    beside = tmp_path / "project"
    beside.mkdir()
    monkeypatch.setattr(config_file, "CONFIG_FOLDERS", (Path("configs"), beside))
    for name, folder in (("ecommerce", "configs"), ("census", "project"), ("ecommerce", "project")):
        write(tmp_path / folder, GOOD, f"{name}.yaml")
    assert load_config("ecommerce", []).path == Path("configs/ecommerce.yaml")
    assert load_config("ecommerce.yaml", []).path == Path("configs/ecommerce.yaml")
    assert load_config("census", []).path == beside / "census.yaml"
    write(tmp_path, GOOD, "mine.yaml")
    assert load_config("mine.yaml", []).path == Path("mine.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config("ecomerce.yaml", [])
    assert caught.value.problems == [
        f"--config ecomerce.yaml: there is no such file in ., configs, {beside}; available: "
        "ecommerce.yaml, census.yaml"
    ]
    with pytest.raises(ConfigError, match=r"there is no such file; available: ecommerce\.yaml"):
        load_config("deep/ecommerce.yaml", [])


@given(st.lists(st.text(min_size=1).filter(lambda t: not {"'", '"'} <= set(t)), min_size=1))
def test_keys_are_read_as_they_are_shown(parts):
    assert parse_key(show_key(tuple(parts))) == tuple(parts)


def test_null_is_a_choice_where_it_is_one(tmp_path):
    config = load_config(write(tmp_path, GOOD), ["data.missing_columns=null"]).config
    assert config.data.missing_columns == "null"
