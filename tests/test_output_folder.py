from pathlib import Path

import pytest

from edorec.errors import InputError
from edorec.output_folder import output_folder


def write(folder: Path, text: str, error: type[BaseException] | None = None) -> None:
    with output_folder(folder, ("a.parquet",)) as temporary:
        (temporary / "a.parquet").write_text(text)
        if error is not None:
            raise error


def test_the_folder_appears_when_complete_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "new" / "log"
    write(out, "first")
    (tmp_path / "new" / "log.new").mkdir()
    (tmp_path / "new" / "log.new" / "of a killed run").touch()
    write(out, "second")
    assert (out / "a.parquet").read_text() == "second"
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "log", "a.parquet"]


@pytest.mark.parametrize("error", [InputError, KeyboardInterrupt, MemoryError])
def test_an_error_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    write(tmp_path / "log", "first")
    with pytest.raises(error):
        write(tmp_path / "log", "half", error)
    assert (tmp_path / "log" / "a.parquet").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.pdf").touch()
    with pytest.raises(InputError) as caught:
        write(tmp_path, "first")
    assert str(caught.value) == f"{tmp_path} holds more than a.parquet; give another --out"
    assert (tmp_path / "thesis.pdf").exists()
