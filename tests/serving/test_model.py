"""A loaded model: the trainer's scores whatever comes together, from any thread; its signature."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import edorec
from edorec.errors import ConfigError
from tests.serving.rows import odd_rows, trainer_batches
from tests.toy import toy_rows


@pytest.mark.parametrize("batch_size", [1, 2, 5, 1000])
def test_scores_and_embedding_vectors_equal_the_trainers(trained, model, tmp_path, batch_size):
    rows = odd_rows().slice(0, 60 if batch_size == 1 else 1004)
    recommender, (batch,) = trainer_batches(trained, rows, tmp_path)
    with torch.no_grad():
        wanted = torch.sigmoid(recommender.logits(batch)).numpy()
        vectors = torch.cat(recommender.embed(batch), dim=1)
    served = edorec.load(model)
    parts = [rows.slice(start, batch_size) for start in range(0, len(rows), batch_size)]
    found = pa.concat_tables([served.predict(part) for part in parts])
    for k, task in enumerate(served.signature.tasks):
        np.testing.assert_allclose(found[f"score_{task}"].to_numpy(), wanted[:, k], atol=1e-6)
    embedded = torch.cat([served.embed(served.reader.read(part)) for part in parts])
    assert torch.equal(embedded, vectors)


def test_a_batch_of_one_and_of_ten_thousand(trained, model, tmp_path):
    rows = toy_rows(10_000, seed=3)
    recommender, (batch,) = trainer_batches(trained, rows, tmp_path)
    with torch.no_grad():
        wanted = recommender.logits(batch)
    served = edorec.load(model)
    inputs = served.reader.read(rows)
    torch.testing.assert_close(served.logits_of(inputs), wanted, atol=1e-5, rtol=1e-5)
    one = served.logits_of(served.reader.read(rows.slice(7, 1)))
    torch.testing.assert_close(one, wanted[7:8], atol=1e-5, rtol=1e-5)


def test_many_threads_score_at_once(model):
    served = edorec.load(model)
    rows = odd_rows()
    wanted = served.predict(rows)
    parts = [rows.slice(start, 1 + start % 97) for start in range(0, 1400, 7)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(served.predict, parts))
    for start, scores in zip(range(0, 1400, 7), found, strict=True):
        for name in wanted.column_names:
            expected = wanted[name].to_numpy()[start : start + len(scores)]
            np.testing.assert_allclose(scores[name].to_numpy(), expected, atol=1e-6)


def test_data_frames_keep_their_index_and_ignore_other_columns(model):
    served = edorec.load(model)
    frame = odd_rows().slice(4, 20).to_pandas()
    frame.index = pd.Index(range(100, 120), name="row")
    frame["other"] = "ignored"
    scores = served.predict(frame)
    assert list(scores.columns) == ["score_click", "score_buy"]
    assert scores.index.equals(frame.index)
    table = served.predict(pa.Table.from_pandas(frame))
    np.testing.assert_array_equal(scores["score_click"], table["score_click"].to_numpy())
    assert len(served.predict(frame.iloc[:0])) == 0


def test_a_missing_column_is_named(model):
    with pytest.raises(ConfigError, match="there is no column price"):
        edorec.load(model).predict(odd_rows().drop_columns(["price"]))


def test_a_column_of_another_type_is_named(model):
    rows = odd_rows().drop_columns(["user"]).append_column("user", pa.array([1.5] * 1504))
    with pytest.raises(ConfigError, match="column user of the rows to score is double"):
        edorec.load(model).predict(rows)


def test_the_signature_names_columns_types_and_tasks(model):
    signature = edorec.load(model).signature
    found = {i.column: (i.kind, i.type) for i in signature.inputs}
    assert found == {
        "user": ("id", "int64"),
        "item": ("id", "string"),
        "viewed": ("ids", "int64"),
        "price": ("number", "float64"),
    }
    assert signature.tasks == ("click", "buy")
