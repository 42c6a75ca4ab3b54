"""Exported models for servers."""

import pytest

from edorec.serving.export import export
from edorec.serving.formats import Formats, parse_formats


@pytest.fixture(scope="session")
def exported(trained_int8, tmp_path_factory):
    """The toy model as trained."""
    folder = tmp_path_factory.mktemp("exported") / "toy"
    export(trained_int8, folder, formats=Formats(), verbosity=-1)
    return folder


@pytest.fixture(scope="session")
def exported_int2(trained_int8, tmp_path_factory):
    """Another version, whose scores differ."""
    folder = tmp_path_factory.mktemp("exported") / "toy2"
    export(trained_int8, folder, formats=parse_formats(["int2"]), max_auc_loss=1, verbosity=-1)
    return folder
