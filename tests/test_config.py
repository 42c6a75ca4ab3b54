"""Loading configurations: values, where they came from, every problem at once."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edorec.config import RunConfig, dump_config, load_config, print_config
from edorec.config_file import show_key
from edorec.config_schema import ANY_NAME, describe, find, walk
from edorec.errors import ConfigError
from tests.config_samples import GOOD, problems, write


def test_values_defaults_and_provenance(tmp_path):
    path = write(tmp_path, GOOD)
    loaded = load_config(path, ["train.epochs=3", "model.backbone.hidden=[64]"])
    config = loaded.config
    assert config.name == "run"
    assert config.features.sparse["user"].pooling == "mean"
    assert config.train.learning_rate == 0.001
    assert config.train.epochs == 3
    assert config.model.backbone.name == "deepfm"
    assert config.model.backbone.hidden == [64]
    assert str(loaded.path) == path
    assert loaded.provenance["train.learning_rate"] == f"{path}:18"
    assert loaded.provenance["features.sparse.recent.pooling"] == f"{path}:9"
    assert loaded.provenance["train.epochs"] == "--set train.epochs=3"
    assert loaded.provenance["model.backbone.name"] == "default"
    assert loaded.provenance["train.batch_size"] == "default"


def test_dump_loads_back_equal_and_print_says_where_from(tmp_path):
    loaded = load_config(
        write(tmp_path, GOOD),
        ["features.sparse.'user.id'.column=uid", "name='1e3'", "embedding.init_std=1e-5"],
    )
    for text in (dump_config(loaded.config), print_config(loaded)):
        again = load_config(write(tmp_path, text, "again.yaml"), [])
        assert again.config == loaded.config
    lines = [line for line in print_config(loaded).splitlines() if "#" in line]
    assert len(lines) == len(loaded.provenance)
    assert any(line.split() == ["label:", "label_buy", "#", f"{loaded.path}:14"] for line in lines)
    assert any(
        "column: uid" in line and "# --set features.sparse.'user.id'" in line for line in lines
    )


@pytest.mark.parametrize("dim", [1, 2, 6, 8])
def test_any_dim_is_accepted(tmp_path, dim):
    overrides = [f"embedding.dim={dim}", f"vocabularies.item.dim={dim}"]
    config = load_config(write(tmp_path, GOOD), overrides).config
    assert (config.embedding.dim, config.vocabularies["item"].dim) == (dim, dim)


def test_b03_all_problems_at_once_in_the_order_of_the_file(tmp_path):
    path = write(
        tmp_path,
        """\
lr: 0.1
data:
  train: [1]
features:
  sparse:
    user: {dim: 8, pooling: max}
    recent: {vocabulary: usr}
    price:
  dense:
    price:
    target: {column: label_click}
  brand: {column: b}
tasks:
  click: {label: label_click}
train:
  learning_rat: 1
  epochs: 0
  early_stopping: {task: clik, patience: 2, metric: gauc}
vocabularies:
  itm: {dim: 1}
""",
    )
    assert problems(path, "train.epoch=1", "train.seed=a") == [
        "run.yaml:1: lr: unknown key; did you mean train.learning_rate?",
        "run.yaml:3: data.train.0: wanted text, got 1",
        "run.yaml:6: features.sparse.user.dim: unknown key; did you mean vocabularies.user.dim?",
        "run.yaml:6: features.sparse.user.pooling: wanted one of sum, mean, din, transformer, "
        "got 'max'",
        "run.yaml:7: features.sparse.recent.vocabulary: there is no vocabulary usr, nor a feature "
        "of that name that has its own; did you mean user?",
        "run.yaml:10: features.dense.price: features.sparse.price has the same name; features need "
        "different names (column says what they read)",
        "run.yaml:11: features.dense.target.column: column label_click is the label of task click; "
        "a label cannot be a feature too",
        "run.yaml:12: features.brand: unknown key; did you mean features.sparse.brand?",
        "run.yaml:16: train.learning_rat: unknown key; did you mean train.learning_rate?",
        "run.yaml:17: train.epochs: wanted a whole number >= 1, got 0",
        "run.yaml:18: train.early_stopping.task: there is no task clik; did you mean click?",
        "run.yaml:18: train.early_stopping.patience: early stopping needs validation files: give "
        "data.valid",
        "run.yaml:18: train.early_stopping.metric: gauc needs a column that groups rows: give "
        "data.group",
        "run.yaml:20: vocabularies.itm: no feature uses this vocabulary; there are price, "
        "user, usr",
        "--set train.epoch=1: train.epoch: unknown key; did you mean train.epochs?",
        "--set train.seed=a: train.seed: wanted a whole number >= 0, got 'a'",
    ]


def test_required_sections_are_named(tmp_path):
    assert problems(write(tmp_path, "train: {epochs: 1}")) == [
        "run.yaml: data: required and not given; wanted "
        + describe(find(RunConfig, ("data",)).annotation),
        "run.yaml: features: required and not given; wanted a mapping with the keys sparse, dense",
        "run.yaml: tasks: required and not given; wanted a mapping of names (at least 1)",
    ]


@pytest.mark.parametrize("path", sorted((Path(__file__).parent.parent / "configs").glob("*.yaml")))
def test_shipped_configurations_are_valid(path):
    loaded = load_config(str(path), [])
    assert loaded.config.name == path.stem
    assert len(path.read_text().splitlines()) <= 90


def test_every_key_has_a_description_and_words_for_its_type():
    for key in walk(RunConfig):
        assert describe(key.annotation, key.field)
        if key.path[-1] != ANY_NAME and not key.sections and key.field is not None:
            assert (key.field.description or "").endswith("."), key.path


KEYS = [
    show_key(tuple(name if part == ANY_NAME else part for part in key.path) + tail)
    for key in walk(RunConfig)
    for name in ("user", "item", "click", "dim", "lr")
    for tail in ((), ("lr",), ("column", "x"))
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.floats() | st.sampled_from(KEYS),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=3))
def test_whatever_is_written_loads_or_is_told_in_lines(tmp_path, overrides):
    path = write(tmp_path, GOOD)
    # JSON is YAML, but for NaN and infinity.
    texts = [f"{key}={json.dumps(value)}" for key, value in overrides]
    texts = [text.replace("NaN", ".nan").replace("Infinity", ".inf") for text in texts]
    try:
        config = load_config(path, texts).config
    except ConfigError as error:
        lines = error.problems
    else:
        again = write(tmp_path, dump_config(config), "again.yaml")
        assert load_config(again, []).config == config
        return
    assert lines
    assert all(line and "\n" not in line for line in lines)
