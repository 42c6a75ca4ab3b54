from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edorec.data.vocabulary import RankTable, Vocabulary, read_counts, safe_file_name
from edorec.errors import InputError

WORDS = st.integers(0, 2**64 - 1)


@given(
    known=st.lists(WORDS, unique=True, max_size=60),
    asked=st.lists(WORDS, max_size=20),
    crowded=st.booleans(),
)
def test_rank_table_is_a_dictionary(known: list[int], asked: list[int], crowded: bool) -> None:
    if crowded:  # all in one place of the table of starts, and the largest hash there is
        known = sorted({word >> 20 for word in known} | {2**64 - 1}, reverse=True)
    table = RankTable(np.array(known, dtype=np.uint64))
    words = np.array([*asked, *known, 0, 2**64 - 1], dtype=np.uint64)
    ranks = {word: rank for rank, word in enumerate(known)}
    found = table.encode(words)
    assert found.dtype == np.int64
    for word, code in zip(words.tolist(), found.tolist(), strict=True):
        assert code & 0xFFFFFFFF == ranks.get(word, -1) + 1
        assert code >> 32 & 0xFFFFFFFF == word >> 32


def test_cuts() -> None:
    vocabulary = Vocabulary("v", Path("v"), np.array([35, 25, 10, 10, 5, 5, 4, 3, 2, 1]))
    assert vocabulary.num_ids == 10
    assert vocabulary.num_with_count(10) == 4
    assert vocabulary.num_with_count(11) == 2
    assert vocabulary.num_with_count(1) == 10
    assert vocabulary.decile_cuts().tolist() == [1, 1, 1, 2, 2, 2, 3, 4, 6]


def test_file_names_are_safe_and_differ() -> None:
    names = ["user", "User", "a/b", "a.b", "..", "", "é", "a b", "x" * 200, "x" * 201]
    files = [safe_file_name(name, index) for index, name in enumerate(names)]
    assert files[0] == "user"
    assert len({file.lower() for file in files}) == len(files)
    for file in files:
        assert "/" not in file
        assert len(file) < 100
        assert not file.startswith("..") or file not in ("..", ".")


def test_damaged_vocabulary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "v.parquet"
    path.write_text("no")
    with pytest.raises(InputError, match=r"v\.parquet is not a sound vocabulary: "):
        read_counts(path)
