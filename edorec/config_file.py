"""Reading a configuration: which file, its YAML, the overrides, and where every key came from.

YAML is read twice: once as values and once as a tree of nodes, which knows the line of every key
and still holds keys that were written twice.
"""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML, MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.error import MarkedYAMLError

from edorec.config_schema import Path as KeyPath
from edorec.errors import ConfigError

CONFIG_FOLDERS = (Path("configs"), Path(__file__).resolve().parent.parent / "configs")
TEXT_TAGS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")


@dataclass
class Source:
    """The values of a configuration before validation.

    Attributes:
        file: the YAML file.
        values: its content with the overrides applied; mappings, lists and scalars.
        origins: where each key was given: ``file:line``, or ``--set key=value``.
        override_keys: the key path of each override, by its origin.
        problems: one sentence for every fault in the writing of a key or an override.
    """

    file: Path
    values: dict[str, Any]
    origins: dict[KeyPath, str] = field(default_factory=dict)
    override_keys: dict[str, KeyPath] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def origin(self, path: KeyPath) -> str:
        """Where ``path``, or the nearest key around it that was given, came from."""
        while path:
            if path in self.origins:
                return self.origins[path]
            path = path[:-1]
        return str(self.file)


def find_config(name: str) -> Path:
    """The file that a name or path means.

    A path is taken as it is; a bare name, with or without ``.yaml``, is a file here, in
    ``./configs``, or in the ``configs`` folder of the project.

    Raises:
        ConfigError: there is none; names those that there are, the nearest first.
    """
    bare = Path(name).name == name
    folders = [Path(), *CONFIG_FOLDERS] if bare else [Path()]
    for folder in folders:
        for candidate in (folder / name, folder / f"{name}.yaml"):
            if candidate.is_file():
                return candidate
    available = sorted({path.name for folder in CONFIG_FOLDERS for path in folder.glob("*.yaml")})
    stems = [Path(file).stem for file in available]
    near = difflib.get_close_matches(Path(name).stem, stems, n=len(stems) or 1, cutoff=0.6)
    ordered = [f"{stem}.yaml" for stem in [*near, *(s for s in stems if s not in near)]]
    where = " in " + ", ".join(dict.fromkeys(str(f) for f in folders)) if bare else ""
    known = f"; available: {', '.join(ordered)}" if ordered else ""
    raise ConfigError([f"--config {name}: there is no such file{where}{known}"])


def read_config(file: Path, overrides: list[str]) -> Source:
    """Reads a YAML file and applies ``key=value`` overrides, later ones winning.

    Raises:
        ConfigError: the text is not YAML or is not a mapping.
    """
    try:
        text = file.read_text(encoding="utf-8")
        root = _yaml().compose(text)
        values = _yaml(keys_may_repeat=True).load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file}: cannot be read: {error}"]) from error
    except MarkedYAMLError as error:
        raise ConfigError([f"{_mark(file, error)}: not valid YAML: {_reason(error)}"]) from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError([f"{file}: wanted a mapping of sections, got {show(values)}"])
    source = Source(file, _plain(values))
    if root is not None:
        _record(source, root, ())
    for override in overrides:
        source.problems += _override(source, override)
    return source


def parse_key(text: str) -> tuple[str, ...]:
    """Splits a dotted key; a part in single or double quotes may hold dots.

    Raises:
        ValueError: a part is empty or a quote is not closed.
    """
    parts, rest = [], text
    while True:
        quote = rest[:1]
        if quote in ("'", '"'):
            part, closed, rest = rest[1:].partition(quote)
            if not closed or (rest and not rest.startswith(".")):
                raise ValueError(f"unbalanced quotes in {text}")
            more, rest = bool(rest), rest[1:]
        else:
            part, dot, rest = rest.partition(".")
            more = bool(dot)
        if not part:
            raise ValueError(f"empty part in {text!r}")
        parts.append(part)
        if not more:
            return tuple(parts)


def show_key(path: KeyPath) -> str:
    """A key path as :func:`parse_key` reads it."""
    return ".".join(_quoted(str(part)) for part in path)


def show(value: Any) -> str:
    """A value for an error message, cut when long."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case dict():
            inner = ", ".join(f"{key}: {show(item)}" for key, item in value.items())
            text = f"{{{inner}}}"
        case list():
            text = f"[{', '.join(map(show, value))}]"
        case _:
            text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _quoted(part: str) -> str:
    if not set(part) & set(".='\" "):
        return part
    return f"'{part}'" if "'" not in part else f'"{part}"'


def _yaml(*, keys_may_repeat: bool = False) -> YAML:
    """A reader of YAML 1.2 into plain values; in files ``_record`` reports keys that repeat."""
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = keys_may_repeat
    return yaml


def _plain(value: Any) -> Any:
    """Whole floats as integers, so that ``1e6`` will do for a number of rows; names as text."""
    match value:
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case float() if value.is_integer():
            return int(value)
    return value


def _record(source: Source, node: Node, path: KeyPath) -> None:
    """Notes the line of every key below ``node``, keys written twice and keys that are no text."""
    for key, child, line in _children(node):
        name = key.value if isinstance(key, ScalarNode) else key
        inner, origin = (*path, name), f"{source.file}:{line}"
        if isinstance(key, ScalarNode) and key.tag not in TEXT_TAGS:
            source.problems.append(
                f"{origin}: {show_key(inner)}: a name must be text, put it in quotes"
            )
        if inner in source.origins:
            first = source.origins[inner].rpartition(":")[2]
            source.problems.append(
                f"{origin}: {show_key(inner)}: written twice, first on line {first}"
            )
            continue
        source.origins[inner] = origin
        _record(source, child, inner)


def _children(node: Node) -> Iterator[tuple[ScalarNode | int, Node, int]]:
    """(key or index, node, line from 1) of what is directly in a mapping or list."""
    if isinstance(node, MappingNode):
        for key, child in node.value:
            if isinstance(key, ScalarNode):
                yield key, child, key.start_mark.line + 1
    elif isinstance(node, SequenceNode):
        for index, child in enumerate(node.value):
            yield index, child, child.start_mark.line + 1


def _override(source: Source, text: str) -> list[str]:
    """Applies one ``key=value``; returns what is wrong with it."""
    origin = f"--set {text}"
    left, equals, right = _split_override(text)
    if not equals:
        return [f"{origin}: wanted KEY=VALUE, such as train.epochs=2"]
    try:
        path = parse_key(left.strip())
        value = _plain(_yaml().load(right))
    except ValueError as error:
        return [f"{origin}: {error}"]
    except MarkedYAMLError as error:
        return [f"{origin}: the value is not valid YAML: {_reason(error)}"]
    holder = source.values
    for depth, part in enumerate(path[:-1], start=1):
        if holder.get(part) is None:
            holder[part] = {}
            source.origins[path[:depth]] = origin
        holder = holder[part]
        if not isinstance(holder, dict):
            return [f"{origin}: {show_key(path[:depth])} holds {show(holder)}; set it as a whole"]
    holder[path[-1]] = value
    for given in [given for given in source.origins if given[: len(path)] == path]:
        del source.origins[given]
    source.override_keys[origin] = path
    _originate(source, value, path, origin=origin)
    return []


def _split_override(text: str) -> tuple[str, str, str]:
    """Splits at the first ``=`` outside quotes."""
    quote = ""
    for position, character in enumerate(text):
        if character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        elif not quote and character == "=":
            return text[:position], "=", text[position + 1 :]
    return text, "", ""


def _originate(source: Source, value: Any, path: KeyPath, *, origin: str) -> None:
    source.origins[path] = origin
    if isinstance(value, dict):
        for key, item in value.items():
            _originate(source, item, (*path, key), origin=origin)


def _mark(file: Path, error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"{file}:{mark.line + 1}" if mark else str(file)


def _reason(error: MarkedYAMLError) -> str:
    return " ".join(str(error.problem or error.context or error).split())
