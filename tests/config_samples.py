"""A valid configuration and what the tests of loading share."""

from pathlib import Path

import pytest

from edorec.config import load_config
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
