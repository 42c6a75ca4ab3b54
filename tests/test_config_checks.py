"""Faults between two places of a configuration."""

from edorec.config import load_config
from tests.config_samples import GOOD, problems, write


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


def test_the_weight_is_no_feature(tmp_path):
    assert problems(write(tmp_path, GOOD), "data.weight=price") == [
        "run.yaml:11: features.dense.price: column price is the weight of rows; a weight cannot be "
        "a feature too"
    ]


def test_evaluation_while_training_needs_validation_files(tmp_path):
    assert problems(write(tmp_path, GOOD), "data.valid=null", "train.evaluate_every_steps=5") == [
        "--set train.evaluate_every_steps=5: train.evaluate_every_steps: evaluation while training "
        "needs validation files: give data.valid"
    ]


def test_faults_of_type_hide_no_faults_between_keys(tmp_path):
    lines = problems(
        write(tmp_path, GOOD), "train.early_stopping.task=clik", "train.seed=x", "vocabularies=3"
    )
    assert [line for line in lines if "there is no task clik; did you mean click?" in line]
    assert [line for line in lines if "train.seed: wanted a whole number" in line]
