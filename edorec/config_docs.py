"""The key reference and the JSON Schema of a configuration, made from the section classes.

``python -m edorec.config_docs`` writes docs/config.md and docs/config.schema.json.
"""

import inspect
import json
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from edorec.config import RunConfig
from edorec.config_file import show
from edorec.config_schema import ANY_NAME, Key, describe, walk
from edorec.sections import Section

DOCS = Path(__file__).resolve().parent.parent / "docs"
NAME = "<name>"

HEAD = """\
# Configuration keys

A run is one YAML file (YAML 1.2, so `1e-3` is a number and `no` is text). This page is made from
the classes that read it by `python -m edorec.config_docs`; `config.schema.json` beside it is the
same as a JSON Schema, for editors:

```yaml
# yaml-language-server: $schema=docs/config.schema.json
```

- `python train.py --config NAME key=value ...` overrides values: a dotted key, a value in YAML. A
  value that is a mapping replaces the whole section. A name that holds dots is quoted:
  `"features.sparse.'user.id'.column=uid"`.
- `--print-config` prints every value and where it came from.
- An unknown key, a wrong value or a name that leads nowhere is an error, and all of them are told
  at once, with file and line, before any data are read.
- A section with nothing but defaults may be left empty (`user_id:`).
- `<name>` is a name of your choice.
"""


def markdown() -> str:
    """The key reference."""
    parts = [HEAD]
    keys = list(walk(RunConfig))
    top = [key for key in keys if len(key.path) == 1 and not key.sections and not key.entry]
    parts.append(_table("Top level", (), RunConfig, keys=top))
    for key in keys:
        heading = ".".join(NAME if part == ANY_NAME else part for part in key.path)
        for section in key.sections:
            own = [inner for inner in walk(section, prefix=key.path) if _is_value(inner, key)]
            title = f"{heading} (name: {_choice(key, section)})" if key.default_choice else heading
            if own:
                parts.append(_table(f"`{title}`", key.path, section, keys=own))
    return "\n".join(parts)


def json_schema() -> str:
    """The JSON Schema, where a section may also be left empty."""
    schema = RunConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    for section in (schema, *schema["$defs"].values()):
        for property_ in section["properties"].values():
            _allow_empty(property_)
    for key in walk(RunConfig):
        if key.default_choice:
            # Of several alternatives only the default one may leave out which one it is.
            name, default = key.default_choice
            others = [section for section in key.sections if _choice(key, section) != default]
            for other in others:
                schema["$defs"][other.__name__]["required"] = [name]
    return json.dumps(schema, indent=2) + "\n"


def main() -> None:
    """Writes both files."""
    DOCS.mkdir(exist_ok=True)
    (DOCS / "config.md").write_text(markdown(), encoding="utf-8")
    (DOCS / "config.schema.json").write_text(json_schema(), encoding="utf-8")


def _is_value(inner: Key, outer: Key) -> bool:
    """Whether a key is a value directly in a section, neither a section nor a mapping of names."""
    return len(inner.path) == len(outer.path) + 1 and not inner.sections and not inner.entry


def _choice(key: Key, section: type[Section]) -> str:
    assert key.default_choice is not None
    return str(section.model_fields[key.default_choice[0]].default)


def _table(title: str, path: tuple[str, ...], section: type[Section], *, keys: list[Key]) -> str:
    lines = [f"## {title}", "", inspect.getdoc(section) or "", ""]
    lines += ["| key | takes | default | |", "|---|---|---|---|"]
    for key in keys:
        assert key.field is not None
        cells = (
            f"`{key.path[-1]}`",
            describe(key.annotation, key.field),
            _default(key.field),
            key.field.description or "",
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"`{show(field.default)}`"


def _allow_empty(property_: dict[str, Any]) -> None:
    """Lets a key that holds a section, or a mapping of sections, hold null instead."""
    if "null" in property_.get("enum", ()):
        property_["enum"].append(None)
        del property_["type"]
    entries = property_.get("additionalProperties")
    if isinstance(entries, dict) and "$ref" in entries:
        property_["additionalProperties"] = {"anyOf": [entries, {"type": "null"}]}
        property_["type"] = ["object", "null"]
    elif "$ref" in property_:
        property_["anyOf"] = [{"$ref": property_.pop("$ref")}, {"type": "null"}]


if __name__ == "__main__":
    main()
