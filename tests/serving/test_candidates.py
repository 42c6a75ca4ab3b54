"""Candidates of users: the same scores as those of joined rows."""

import numpy as np
import pyarrow as pa
import pytest

import edorec
from edorec.errors import ConfigError
from edorec.serving.candidates import CandidateScorer
from edorec.serving.export import export
from edorec.serving.formats import Formats, parse_formats
from tests.toy import toy_rows

COLUMNS = ["item", "price", "user", "viewed"]


@pytest.fixture(scope="module", params=["as-trained", "int8:50:pq"])
def model(request, trained, trained_int8, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    as_trained = request.param == "as-trained"
    formats = Formats() if as_trained else parse_formats([request.param])
    run = trained if as_trained else trained_int8  # the one has rows of single tasks
    export(run, folder, formats=formats, max_auc_loss=1, verbosity=-1)
    return edorec.load(folder)


def without(table: pa.Table, names: list[str]) -> pa.Table:
    """The other columns; an Arrow table made without columns has no rows."""
    return pa.table({name: table[name] for name in table.column_names if name not in names})


@pytest.mark.parametrize(
    "user_columns", [["user", "viewed"], ["user", "viewed", "price"], [], COLUMNS]
)
@pytest.mark.parametrize("num_candidates", [0, 1, 300])
def test_scores_equal_those_of_joined_rows(model, user_columns, num_candidates):
    rows = toy_rows(num_candidates + 3, seed=5).select(COLUMNS)
    users, candidates = rows.slice(0, 3), rows.slice(3)
    user_of = np.random.default_rng(0).integers(0, 3, num_candidates)
    scorer = CandidateScorer(model, user_columns)
    found = scorer.predict(
        without(users, [name for name in COLUMNS if name not in user_columns]),
        without(candidates, user_columns),
        user_of,
    )
    joined = candidates
    for name in user_columns:
        place = joined.column_names.index(name)
        joined = joined.set_column(place, name, users[name].take(pa.array(user_of)))
    wanted = model.predict(joined).to_pandas().to_numpy()
    assert found.shape == (num_candidates, 2)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_many_candidates_are_scored_in_parts(model):
    rows = toy_rows(9000, seed=6).select(COLUMNS)
    users = rows.slice(17, 1).select(["user"])
    found = CandidateScorer(model, ["user"]).predict(
        users, rows.drop_columns(["user"]), np.zeros(9000, np.int64)
    )
    joined = rows.set_column(2, "user", users["user"].take(pa.array([0] * 9000)))
    np.testing.assert_allclose(found[:, 0], model.predict(joined)["score_click"], atol=1e-6)


def test_a_missing_column_is_named(model):
    users = toy_rows(1).select(["user"])
    candidates = toy_rows(2).select(["item", "viewed"])
    with pytest.raises(ConfigError, match="there is no column price"):
        CandidateScorer(model, ["user"]).predict(users, candidates, np.zeros(2, np.int64))
