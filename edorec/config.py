"""The table of contents of a run: each section is defined beside the code that reads it."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq

from edorec.checkpoints.config import CheckpointConfig
from edorec.config_checks import cross_check
from edorec.config_errors import validation_problems
from edorec.config_file import Source, find_config, read_config, show_key
from edorec.config_schema import Path as KeyPath
from edorec.config_schema import walk
from edorec.data.schema import DataConfig, FeaturesConfig, TaskConfig, VocabularyConfig
from edorec.embedding.tables import EmbeddingConfig, MemoryConfig
from edorec.errors import ConfigError
from edorec.models.config import ModelConfig
from edorec.optimization import TrainConfig
from edorec.sections import Section

NULL_TAG = "tag:yaml.org,2002:null"


class RunConfig(Section):
    """A whole run."""

    name: str | None = Field(None, description="Name of the run; default the config file's name.")
    data: DataConfig
    features: FeaturesConfig
    tasks: dict[str, TaskConfig] = Field(description="Tasks by name, at least one.", min_length=1)
    vocabularies: dict[str, VocabularyConfig] = Field(
        {}, description="Settings by vocabulary; a feature without one here has the defaults."
    )
    embedding: EmbeddingConfig = EmbeddingConfig()
    memory: MemoryConfig = MemoryConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()


@dataclass(frozen=True)
class Loaded:
    """A valid configuration and where it came from.

    Attributes:
        config: the configuration.
        provenance: for every key path that holds a value: ``default``, ``file:line`` or
            ``--set key=value``.
        path: the YAML file.
    """

    config: RunConfig
    provenance: dict[str, str]
    path: Path


def load_config(name_or_path: str, overrides: list[str]) -> Loaded:
    """Reads, overrides and checks a configuration.

    Args:
        name_or_path: a path, or the name of a file in ``configs`` with or without ``.yaml``.
        overrides: ``key=value`` with dotted keys and values in YAML; later ones win.

    Raises:
        ConfigError: with every problem found, one line each: where, which key, what is wrong.
    """
    source = read_config(find_config(name_or_path), overrides)
    _complete(source.values)
    config, problems = None, cross_check(source.values)
    try:
        config = RunConfig.model_validate(source.values, strict=True)
    except ValidationError as error:
        problems = validation_problems(RunConfig, source, error) + problems
    lines = source.problems + _lines(source, problems)
    if lines or config is None:
        raise ConfigError(lines)
    if config.name is None:
        config = config.model_copy(update={"name": source.file.stem})
    leaves = _leaves(config.model_dump(), ())
    provenance = {show_key(path): source.origins.get(path, "default") for path in leaves}
    return Loaded(config, provenance, source.file)


def dump_config(config: RunConfig) -> str:
    """The configuration with every value as YAML that loads back equal."""
    return _to_yaml(_commented(config.model_dump(), (), provenance={}))


def print_config(loaded: Loaded) -> str:
    """Like :func:`dump_config`, with a comment after every value that says where it came from."""
    return _to_yaml(_commented(loaded.config.model_dump(), (), provenance=loaded.provenance))


def _complete(values: dict[str, Any]) -> None:
    """Reads a section with nothing in it as an empty one, and fills in default choices."""
    keys = list(walk(RunConfig))

    def fill(mapping: dict[str, Any], path: KeyPath) -> None:
        for name in mapping:
            key = next((key for key in keys if key.fits((*path, name))), None)
            if key is None:
                continue
            if mapping[name] is None and key.takes_null_word:
                mapping[name] = "null"
            if mapping[name] is None and (key.sections or key.entry):
                mapping[name] = {}
            if isinstance(mapping[name], dict):
                fill(mapping[name], (*path, name))
                if key.default_choice:
                    mapping[name].setdefault(*key.default_choice)

    fill(values, ())


def _lines(source: Source, problems: list[tuple[KeyPath, str]]) -> list[str]:
    """One line for each problem, in the order of the file, overrides last."""
    keys = list(source.origins)
    lines = []
    for path, sentence in problems:
        origin = source.origin(path)
        place = keys.index(path) if path in keys else len(keys)
        text = f"{origin}: {show_key(path)}: {sentence}" if path else f"{origin}: {sentence}"
        lines.append((origin in source.override_keys, place, text))
    return [text for *_, text in sorted(lines, key=lambda line: line[:2])]


def _leaves(value: Any, path: KeyPath) -> list[KeyPath]:
    """The key paths of everything that is not a mapping with entries."""
    if isinstance(value, dict) and value:
        return [leaf for name, inner in value.items() for leaf in _leaves(inner, (*path, name))]
    return [path]


def _commented(value: Any, path: KeyPath, *, provenance: dict[str, str]) -> Any:
    """The value as ruamel's own mappings, with a comment at every leaf that has a provenance."""
    if isinstance(value, list):
        items = CommentedSeq(value)
        items.fa.set_flow_style()
        return items
    if not isinstance(value, dict):
        return value
    mapping = CommentedMap()
    if not value:
        mapping.fa.set_flow_style()
    for name, inner in value.items():
        mapping[name] = _commented(inner, (*path, name), provenance=provenance)
        origin = provenance.get(show_key((*path, name)))
        if origin:
            mapping.yaml_add_eol_comment(origin, name, column=56)
    return mapping


def _to_yaml(mapping: Any) -> str:
    yaml = YAML()
    yaml.width = 4096
    yaml.representer.add_representer(
        type(None), lambda representer, _: representer.represent_scalar(NULL_TAG, "null")
    )
    stream = io.StringIO()
    yaml.dump(mapping, stream)
    return stream.getvalue()
