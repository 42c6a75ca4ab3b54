"""Wrong keys name the key that was meant, wrong values what was wanted (B03)."""

import pytest

from edorec.config import RunConfig
from edorec.config_errors import ALIASES
from edorec.config_schema import find
from tests.config_samples import GOOD, problems, write


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
def test_b03_unknown_key_names_the_nearest(tmp_path, override, meant):
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
