"""The committed key reference and JSON Schema are those that the classes give."""

import json

from edorec import config_docs
from edorec.config import RunConfig
from edorec.config_schema import walk


def test_committed_pages_are_current():
    remedy = "run: python -m edorec.config_docs"
    assert (config_docs.DOCS / "config.md").read_text() == config_docs.markdown(), remedy
    assert (config_docs.DOCS / "config.schema.json").read_text() == config_docs.json_schema(), (
        remedy
    )


def test_every_value_has_a_line_and_is_in_the_schema():
    text, schema = config_docs.markdown(), json.loads(config_docs.json_schema())
    properties = {name for part in schema["$defs"].values() for name in part["properties"]}
    for key in walk(RunConfig):
        if not key.sections and not key.entry:
            assert f"| `{key.path[-1]}` |" in text
            assert key.path[-1] in properties | set(schema["properties"])


def test_only_the_default_choice_may_leave_out_its_name():
    definitions = json.loads(config_docs.json_schema())["$defs"]
    assert "required" not in definitions["DeepFMConfig"]
    assert definitions["DCNv2Config"]["required"] == ["name"]
