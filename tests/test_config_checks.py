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


def memory_problems(tmp_path, *lines):
    return problems(write(tmp_path, GOOD + "\n".join(["memory:", *lines]) + "\n"))


def test_bands_go_down_to_ids_of_any_count(tmp_path):
    assert memory_problems(
        tmp_path,
        "  bands:",
        "    - {min_count: 100, format: fp32}",
        "    - {min_count: 100, format: int8}",
        "    - {min_count: 120, format: int8}",
        "    - min_count: 5",
        "      format: int4",
    ) == [
        "run.yaml:22: memory.bands.1.min_count: must be below that of the band before, 100, got "
        "100",
        "run.yaml:23: memory.bands.2.min_count: must be below that of the band before, 100, got "
        "120",
        "run.yaml:24: memory.bands.3.min_count: the last band takes all other ids, so its "
        "min_count is 0, not 5",
    ]
    load_config(write(tmp_path, GOOD + "memory: {bands: [{format: int4}]}\n"), [])
    load_config(
        write(tmp_path, GOOD), ["memory.bands=[{min_count: 9, format: int8}, {format: int4}]"]
    )


def test_bands_take_the_place_of_format_and_state(tmp_path):
    assert memory_problems(
        tmp_path, "  format: int8", "  state: bf16", "  bands: [{format: fp32}]"
    ) == [
        "run.yaml:20: memory.format: the bands have formats and states of their own; leave format "
        "out",
        "run.yaml:21: memory.state: the bands have formats and states of their own; leave state "
        "out",
    ]


def test_ternary_rows_are_for_optimizers_that_move_by_the_learning_rate(tmp_path):
    path = write(tmp_path, GOOD)
    cause = (
        "ternary has the learning rate as its step, which is what Adagrad moves a value by, and "
        "embedding.optimizer is sgd"
    )
    assert problems(path, "embedding.optimizer=sgd", "memory.format=ternary") == [
        f"--set memory.format=ternary: memory.format: {cause}"
    ]
    assert problems(path, "embedding.optimizer=sgd", "memory.bands=[{format: ternary}]") == [
        f"--set memory.bands=[{{format: ternary}}]: memory.bands.0.format: {cause}"
    ]
    load_config(path, ["memory.format=ternary"])


def test_states_are_those_of_rowwise_adagrad(tmp_path):
    path = write(tmp_path, GOOD)
    assert problems(path, "embedding.optimizer=adam", "memory.state=log8") == [
        "--set memory.state=log8: memory.state: log8 is for rowwise_adagrad, and "
        "embedding.optimizer is adam"
    ]
    load_config(path, ["embedding.optimizer=adam", "memory.state=fp32"])
    load_config(path, ["memory.state=log8"])
    # What has the wrong type is passed over, and places are counted with it.
    assert memory_problems(
        tmp_path,
        "  bands:",
        "    - int8",
        "    - {format: int4, state: bf16}",
        "embedding: {optimizer: sgd}",
    ) == [
        "run.yaml:21: memory.bands.0: wanted a mapping with the keys min_count, format, state, got "
        "'int8'",
        "run.yaml:22: memory.bands.1.state: bf16 is for rowwise_adagrad, and embedding.optimizer "
        "is sgd",
    ]


def test_faults_inside_bands_are_told_as_elsewhere(tmp_path):
    path = write(tmp_path, GOOD)
    for override, sentence in [
        (
            "memory.bands=int8",
            "memory.bands: wanted a list of mappings with the keys min_count, format, state, got "
            "'int8'",
        ),
        (
            "memory.bands=[{format: sparse28}]",
            "memory.bands.0.format: wanted one of fp32, fp16, int8, int4, int2, ternary, "
            "got 'sparse28'",
        ),
        (
            "memory.bands=[{format: int8, min_count: -1}]",
            "memory.bands.0.min_count: wanted a whole number >= 0, got -1",
        ),
        (
            "memory.bands=[{}]",
            "memory.bands.0.format: required and not given; wanted one of fp32, fp16, int8, int4, "
            "int2, ternary",
        ),
        ("memory.state=[]", "memory.state: wanted one of fp32, bf16, log8 or null, got []"),
    ]:
        found = problems(path, "embedding.optimizer=sgd", override)
        assert found == [f"--set {override}: {sentence}"]


def test_faults_of_single_tables_and_budgets(tmp_path):
    path = write(tmp_path, GOOD)
    for override, key, sentence in [
        ("memory.tables.usr.format=int8", "tables.usr", "there is no such table; did you mean "),
        (
            "memory.tables.user={format: int8, bands: [{format: int4}]}",
            "tables.user.format",
            "the bands have formats and states of their own; leave format out",
        ),
        (
            "memory={budget: 0.5, format: int8}",
            "format",
            "memory.budget decides it; leave it out, or give memory.tables.NAME.format for tables "
            "that are to keep it",
        ),
        ("memory.budget=0", "budget", "wanted a share of FP32's bytes, above 0 and at most 1, or "),
        ("memory.budget=800", "budget", "wanted a share of FP32's bytes, above 0 and at most 1, "),
        ("memory.budget=12 parsecs", "budget", "wanted a number with a unit, such as 800MB or "),
        ("memory.budget=0MB", "budget", "wanted at least 1 byte, got '0MB'"),
    ]:
        found = problems(path, override)
        assert len(found) == 1
        assert found[0].startswith(f"--set {override}: memory.{key}: {sentence}")
    load_config(path, ["memory.budget=1.5 GiB", "memory.tables.user.format=int8"])


def test_learned_task_weights_leave_none_to_give(tmp_path):
    path = write(tmp_path, GOOD)
    assert problems(path, "train.task_weights=uncertainty", "tasks.buy.loss_weight=2") == [
        "--set tasks.buy.loss_weight=2: tasks.buy.loss_weight: train.task_weights is uncertainty, "
        "which learns the weights; leave it out"
    ]
    load_config(path, ["train.task_weights=uncertainty"])


def test_a_chain_needs_two_tasks(tmp_path):
    path = write(tmp_path, GOOD)
    assert problems(path, "model.head.name=esmm", "tasks={click: {label: label_click}}") == [
        "--set model.head.name=esmm: model.head.name: esmm multiplies the probabilities of a chain "
        "of tasks, such as click and buy, and there is one task"
    ]
    load_config(path, ["model.head.name=esmm"])


def test_stem_needs_embeddings_of_tasks(tmp_path):
    path = write(tmp_path, GOOD)
    assert problems(path, "model.head.name=stem") == [
        "--set model.head.name=stem: model.head.name: stem is for tasks with embeddings of their "
        "own; give vocabularies.NAME.task_specific, or use ple"
    ]
    load_config(path, ["model.head.name=stem", "vocabularies.item.task_specific={buy: {rows: 20}}"])


def test_lists_attend_from_the_other_feature_of_their_vocabulary(tmp_path):
    path = write(tmp_path, GOOD.replace("pooling: sum", "pooling: sum, max_length: 5"))
    din = "features.sparse.recent.pooling=din"
    load_config(path, [din])
    assert problems(path, din, "features.sparse.recent.max_length=null") == [
        f"--set {din}: features.sparse.recent.pooling: din needs a longest list; give max_length"
    ]
    user = "features.sparse.user={pooling: din, max_length: 5}"
    assert problems(path, user) == [
        f"--set {user}: features.sparse.user.pooling: din attends from another feature of "
        "vocabulary user, and there is none"
    ]
    two = [din, "features.sparse.bought={vocabulary: item}"]
    assert problems(path, *two) == [
        f"--set {din}: features.sparse.recent.pooling: din attends from another feature of "
        "vocabulary item, and item, bought have it; name one as candidate"
    ]
    load_config(path, [*two, "features.sparse.recent.candidate=bought"])
    candidate = "features.sparse.recent.candidate=user"
    assert problems(path, *two, candidate) == [
        f"--set {candidate}: features.sparse.recent.candidate: din attends from a feature of the "
        "list's own vocabulary, item, that is no such list itself; there are item, bought"
    ]
    assert problems(path, candidate) == [
        f"--set {candidate}: features.sparse.recent.candidate: it is for lists with pooling din or "
        "transformer"
    ]
    layers = "model.transformer={num_layers: 3, share_layers: 2}"
    assert problems(path, layers) == [
        f"--set {layers}: model.transformer.share_layers: it must divide num_layers, which is 3"
    ]


def test_rows_of_single_tasks(tmp_path):
    path = write(tmp_path, GOOD)
    loaded = load_config(path, ["vocabularies.item.task_specific={buy: {rows: 20}}"])
    assert loaded.config.vocabularies["item"].task_specific["buy"].dim == 8
    assert problems(
        path,
        "vocabularies.item.task_specific.bye.rows=20",
        "vocabularies.item.task_specific.buy.dim=4",
        "features.sparse.item@buy={}",
    ) == [
        "--set vocabularies.item.task_specific.bye.rows=20: vocabularies.item.task_specific.bye: "
        "there is no task bye; did you mean buy?",
        "--set vocabularies.item.task_specific.bye.rows=20: vocabularies.item.task_specific.bye: "
        "its table is called item@bye, so item@buy may hold no @",
        "--set vocabularies.item.task_specific.buy.dim=4: vocabularies.item.task_specific.buy: "
        "its table is called item@buy, so item@buy may hold no @",
        "--set vocabularies.item.task_specific.buy.dim=4: vocabularies.item.task_specific.buy."
        "rows: required and not given; wanted a whole number >= 1",
    ]


def test_bins_have_no_vocabulary_made_elsewhere(tmp_path):
    path = write(tmp_path, GOOD)
    load_config(path, ["vocabularies.item.file=item.parquet"])
    assert problems(path, "features.sparse.age={bins: 5}", "vocabularies.age.file=age.parquet") == [
        "--set vocabularies.age.file=age.parquet: vocabularies.age.file: the ids of age are bins "
        "of training values, so no file has them"
    ]
