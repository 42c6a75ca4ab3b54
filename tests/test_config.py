"""Reading, overriding and checking configurations: every problem at once, each with its place."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edorec import config_file
from edorec.config import RunConfig, dump_config, load_config, print_config
from edorec.config_errors import ALIASES
from edorec.config_file import parse_key, show_key
from edorec.config_schema import ANY_NAME, describe, find, walk
from edorec.errors import ConfigError

GOOD = """\
data:
  train: train.parquet
  valid: valid.parquet
  group: user
features:
  sparse:
    user:
    item: {vocabulary: item}
    recent: {vocabulary: item, pooling: sum}
  dense:
    price: {transform: log1p}
tasks:
  click: {label: label_click}
  buy: {label: label_buy}
vocabularies:
  item: {dim: 8}
train:
  learning_rate: 1e-3
"""


def write(folder: Path, text: str, name: str = "run.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def problems(path: str, *overrides: str) -> list[str]:
    """The problems of a configuration, the file's path written as ``run.yaml``."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, list(overrides))
    return [line.replace(path, "run.yaml") for line in caught.value.problems]


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


def test_all_problems_at_once_in_the_order_of_the_file(tmp_path):
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
        "run.yaml:6: features.sparse.user.pooling: wanted one of sum, mean, got 'max'",
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


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("lr=0.1", "train.learning_rate"),
        ("train.lr=0.1", "train.learning_rate"),
        ("embedding.lr=0.1", "embedding.learning_rate"),
        ("train.epoch=1", "train.epochs"),
        ("train.learning_rat=1", "train.learning_rate"),
        ("epochs=3", "train.epochs"),
        ("dim=8", "embedding.dim"),
        ("model.num_experts=8", "model.head.num_experts"),
        ("model.backbone.dropout=.1", "model.dropout"),
        ("train.patience=2", "train.early_stopping.patience"),
        ("sparse={a: {}}", "features.sparse"),
        ("brand={vocabulary: item}", "features.sparse.brand"),
        ("features.brand={column: b}", "features.sparse.brand"),
        ("features.vocabularies={item: {dim: 1}}", "vocabularies"),
        ("shop={min_count: 2}", "vocabularies.shop"),
        ("like={label: label_like}", "tasks.like"),
        ("vocabulary={item: {}}", "vocabularies"),
        ("features.sparse.recent.dim=4", "vocabularies.item.dim"),
        ("features.sparse.recent.vocab=item", "features.sparse.recent.vocabulary"),
        ("tasks.click.weight=2", "tasks.click.loss_weight"),
        ("min_freq=2", "vocabularies.NAME.min_count"),
        ("optimiser.lr=2", "embedding.optimizer"),
    ],
)
def test_unknown_key_names_the_nearest(tmp_path, override, meant):
    (line,) = problems(write(tmp_path, GOOD), override)
    key = override.partition("=")[0].removesuffix(".lr" if "optimiser" in override else " ")
    assert line == f"--set {override}: {key}: unknown key; did you mean {meant}?"


def test_every_alias_leads_to_a_key():
    for alias, target in ALIASES.items():
        assert find(RunConfig, tuple(target.split("."))) is not None, alias
        assert find(RunConfig, (alias,)) is None, alias


def test_a_key_of_another_choice_is_refused(tmp_path):
    path = write(tmp_path, GOOD)
    assert problems(path, "model.head.num_experts=4") == [
        "--set model.head.num_experts=4: model.head.num_experts: shared_bottom takes no num_experts"
    ]
    assert problems(path, "model.backbone.name=deepfn") == [
        "--set model.backbone.name=deepfn: model.backbone.name: wanted one of deepfm, dlrm, dcnv2, "
        "got 'deepfn'"
    ]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("train.epochs=true", "train.epochs: wanted a whole number >= 1, got true"),
        ("train.epochs='2'", "train.epochs: wanted a whole number >= 1, got '2'"),
        ("train.epochs=1.5", "train.epochs: wanted a whole number >= 1, got 1.5"),
        ("train.learning_rate=.inf", "train.learning_rate: wanted a number > 0, got inf"),
        ("data.shuffle=1", "data.shuffle: wanted true or false, got 1"),
        ("data.train=3", "data.train: wanted text or a list of texts, got 3"),
        ("train.clip_norm=0", "train.clip_norm: wanted a number > 0 or null, got 0"),
        ("model.dropout=1", "model.dropout: wanted a number >= 0 and < 1, got 1"),
        ("tasks={}", "tasks: wanted a mapping of names (at least 1), got {}"),
        (
            "model.backbone.hidden=[8,0]",
            "model.backbone.hidden.1: wanted a whole number >= 1, got 0",
        ),
        ("tasks.like={}", "tasks.like.label: required and not given; wanted text"),
    ],
)
def test_wrong_values_say_what_was_wanted(tmp_path, override, sentence):
    assert problems(write(tmp_path, GOOD), override) == [f"--set {override}: {sentence}"]


def test_a_value_for_a_section_or_a_name(tmp_path):
    path = write(tmp_path, GOOD)
    (line,) = problems(path, "train=2")
    assert line.startswith(
        "--set train=2: train: wanted a mapping with the keys epochs, batch_size"
    )
    assert line.endswith("got 2")
    (line,) = problems(path, "vocabularies.dim=8")
    assert line.endswith("got 8; did you mean vocabularies.NAME.dim?")


def test_required_sections_are_named(tmp_path):
    assert problems(write(tmp_path, "train: {epochs: 1}")) == [
        "run.yaml: data: required and not given; wanted "
        + describe(find(RunConfig, ("data",)).annotation),
        "run.yaml: features: required and not given; wanted a mapping with the keys sparse, dense",
        "run.yaml: tasks: required and not given; wanted a mapping of names (at least 1)",
    ]


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


def test_the_same_feature_twice(tmp_path):
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


def test_label_as_feature_is_refused_by_name_and_by_column(tmp_path):
    path = write(tmp_path, GOOD)
    assert problems(
        path, "features.sparse.label_click={}", "features.dense.x.column=label_buy"
    ) == [
        "--set features.sparse.label_click={}: features.sparse.label_click: column label_click is "
        "the label of task click; a label cannot be a feature too",
        "--set features.dense.x.column=label_buy: features.dense.x.column: column label_buy is the "
        "label of task buy; a label cannot be a feature too",
    ]
    # The group column may well be a feature.
    load_config(path, ["data.group=user"])


def test_batch_norm_needs_two_rows(tmp_path):
    path = write(tmp_path, GOOD)
    assert problems(path, "model.batch_norm=true", "train.batch_size=1") == [
        "--set model.batch_norm=true: model.batch_norm: batch normalization needs at least two "
        "rows in a batch, and train.batch_size is 1"
    ]
    load_config(path, ["train.batch_size=1"])
    load_config(path, ["model.batch_norm=true", "train.batch_size=2"])


def test_no_features(tmp_path):
    assert problems(write(tmp_path, GOOD), "features={}", "vocabularies={}") == [
        "--set features={}: features: there are no features; give some under sparse or dense"
    ]


def test_a_vocabulary_may_be_another_features_own(tmp_path):
    path = write(tmp_path, GOOD)
    load_config(path, ["features.sparse.friends.vocabulary=user"])
    # user then has no vocabulary of its own to share.
    (line,) = problems(
        path, "features.sparse.user.vocabulary=item", "features.sparse.friends.vocabulary=user"
    )
    assert "there is no vocabulary user, nor a feature of that name that has its own" in line


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


@pytest.mark.parametrize("path", sorted((Path(__file__).parent.parent / "configs").glob("*.yaml")))
def test_shipped_configurations_are_valid(path):
    loaded = load_config(str(path), [])
    assert loaded.config.name == path.stem
    assert len(path.read_text().splitlines()) <= 90


@given(st.lists(st.text(min_size=1).filter(lambda t: not {"'", '"'} <= set(t)), min_size=1))
def test_keys_are_read_as_they_are_shown(parts):
    assert parse_key(show_key(tuple(parts))) == tuple(parts)


def test_every_key_has_a_description_and_words_for_its_type():
    for key in walk(RunConfig):
        assert describe(key.annotation, key.field)
        if key.path[-1] != ANY_NAME and not key.sections and key.field is not None:
            assert (key.field.description or "").endswith("."), key.path
