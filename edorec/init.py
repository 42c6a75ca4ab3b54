"""``edorec init``: a first configuration for a log, with every guess marked as one."""

import json
import re
from pathlib import Path

from edorec.errors import InputError
from edorec.init_guess import Guess, Guesses, guess
from edorec.init_sample import Sample, Splits, find_splits

HEAD = """\
# Made by `edorec init` from a sample of {rows:,} rows. What is marked "guess" was guessed from
# names and values: check it. `edorec train --config FILE --print-config` shows every other key.
"""

NO_SPLIT = """\
  # All files are for training, so nothing tells how good the model is on rows it has not seen.
  # Split the log by time, give the earliest rows as train, and add:
  # valid: valid.parquet   # for early stopping
  # test: test.parquet     # reported, never chosen on
"""

TIME_SPLIT = """\
  # With DuckDB, for example:
  #   COPY (FROM '{files}' WHERE {column} < {first}) TO 'train.parquet';
  #   COPY (FROM '{files}' WHERE {column} >= {first} AND {column} < {second})
  #     TO 'valid.parquet';
  #   COPY (FROM '{files}' WHERE {column} >= {second}) TO 'test.parquet';
"""


def write_config(data: str, *, out: Path | None) -> str:
    """Writes a configuration for a log.

    Args:
        data: a Parquet file, a folder of them (with splits or not), or a glob.
        out: file to write; None only returns the text.

    Returns:
        The YAML.

    Raises:
        InputError: there are no readable rows, no column that could be a label, or no feature, or
            ``out`` exists.
    """
    if out is not None and out.exists():
        raise InputError(f"--out {out}: the file exists; choose another name")
    splits = find_splits(data)
    sample = Sample(splits.train_files)
    guesses = guess(sample)
    if not guesses.tasks:
        raise InputError(f"{data}: no column holds only 0 and 1, so there is no label to predict")
    if not guesses.sparse and not guesses.dense:
        raise InputError(f"{data}: no column besides the labels can be a feature")
    text = "\n".join(
        (
            HEAD.format(rows=sample.rows),
            _data(splits, guesses, sample=sample),
            _tasks(guesses),
            _features(guesses),
            _left_out(guesses),
            _training(splits),
        )
    )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    return text


def _data(splits: Splits, guesses: Guesses, *, sample: Sample) -> str:
    text = f"data:\n  folder: {_scalar(str(splits.folder))}\n"
    for split, name in splits.names.items():
        note = "  # every Parquet file in the folder and below" if name == "." else ""
        text += f"  {split}: {_scalar(name)}{note}\n"
    if "valid" not in splits.names and "test" not in splits.names:
        text += NO_SPLIT
        if guesses.time:
            text += TIME_SPLIT.format(
                files=_files(splits),
                column='"' + guesses.time.name.replace('"', '""') + '"',
                first=_sql(sample.quantile(guesses.time, 0.8)),
                second=_sql(sample.quantile(guesses.time, 0.9)),
            )
    if guesses.group:
        text += f"  group: {_scalar(guesses.group.name)}  # guess: the user\n"
    if guesses.weight:
        text += f"  # weight: {_scalar(guesses.weight.name)}  # guess: if it weighs the rows\n"
    return text


def _files(splits: Splits) -> Path:
    """The training files as DuckDB finds them."""
    name = splits.names["train"]
    if len(splits.train_files) > 1 and (splits.folder / name).is_dir():
        return splits.folder / name / "**" / f"*{splits.train_files[0].suffix}"
    return splits.train_files[0] if len(splits.train_files) == 1 else splits.folder / name


def _tasks(guesses: Guesses) -> str:
    lines = ["tasks:"]
    for name, task in guesses.tasks.items():
        lines.append(
            f"  {_scalar(name)}: {{label: {_scalar(task.column.name)}}}  # guess: {task.why}"
        )
    return "\n".join(lines) + "\n"


def _features(guesses: Guesses) -> str:
    lines = ["features:"]
    for kind, features in (("sparse", guesses.sparse), ("dense", guesses.dense)):
        lines += [f"  {kind}:"] * bool(features)
        lines += [_feature(feature) for feature in features]
    return "\n".join(lines) + "\n"


def _feature(feature: Guess) -> str:
    settings = ""
    if feature.vocabulary:
        settings = f" {{vocabulary: {_scalar(feature.vocabulary)}}}"
    elif feature.log1p:
        settings = " {transform: log1p}"
    return (
        f"    {_scalar(feature.column.name)}:{settings}  "
        f"# guess: {feature.column.type}, {feature.why}"
    )


def _left_out(guesses: Guesses) -> str:
    if not guesses.left_out:
        return ""
    lines = [f"#   {_scalar(name)}: {reason}" for name, reason in guesses.left_out]
    return "\n".join(["# Left out:", *lines]) + "\n"


def _training(splits: Splits) -> str:
    text = "embedding: {dim: 16, learning_rate: 0.05}\n"
    text += "model: {backbone: {name: deepfm}}\n"
    text += "train:\n  epochs: 1\n  batch_size: 4096\n  learning_rate: 1e-3\n"
    if "valid" in splits.names:
        text += "  early_stopping: {metric: auc, patience: 2}\n"
    return text


def _scalar(text: str) -> str:
    """A text as YAML: plain where that is safe, else in double quotes."""
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_./-]*", text)
    if plain and text.lower() not in ("null", "true", "false"):
        return text
    return json.dumps(text, ensure_ascii=False)


def _sql(value: object) -> str:
    return str(value) if isinstance(value, int | float) else f"'{value}'"
