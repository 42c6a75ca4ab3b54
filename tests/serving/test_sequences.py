"""Models that pool lists by attention: what is served is what was trained."""

from pathlib import Path

import numpy as np
import pytest
import torch

import edorec
from edorec.serving.candidates import CandidateScorer
from edorec.serving.export import export
from edorec.serving.formats import parse_formats
from edorec.train import run
from tests.serving.rows import odd_rows, trainer_batches
from tests.toy import toy_config

FROM_USER = {"vocabulary": "user", "candidate": "user"}
SPARSE = {
    "user": {},
    "item": {},
    "viewed": {**FROM_USER, "pooling": "din", "max_length": 2},
    "seen": {**FROM_USER, "column": "viewed", "pooling": "transformer", "max_length": 3},
    "all": {"column": "viewed", "vocabulary": "user"},
}


@pytest.fixture(scope="module")
def attention(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which three features read one list: two by attention, one by mean."""
    folder = tmp_path_factory.mktemp("attention") / "run"
    config = toy_config(
        log,
        features={"sparse": SPARSE, "dense": {"price": {}}},
        memory={"format": "int8"},
        model={"transformer": {"num_layers": 4, "share_layers": 2}},
    )
    run(config, run_dir=folder, verbosity=-1)
    return folder


@pytest.mark.parametrize("formats", ["int8", "int8:30:pq"])
def test_scores_are_the_trainers(attention: Path, tmp_path: Path, formats: str) -> None:
    model = tmp_path / "model"
    manifest = export(
        attention, model, formats=parse_formats([formats]), max_auc_loss=0.05, verbosity=-1
    )
    for aucs in manifest["evaluation"]["tasks"].values():
        assert aucs["auc_after"] == pytest.approx(aucs["auc_before"], abs=0.05)
    if formats != "int8":
        return
    rows = odd_rows().slice(0, 500)
    recommender, (batch,) = trainer_batches(attention, rows, tmp_path)
    with torch.no_grad():
        wanted = torch.sigmoid(recommender.logits(batch)).numpy()
    served = edorec.load(model)
    for size in (1, 7, 500):
        found = served.predict(rows.slice(0, size))
        for k, task in enumerate(served.signature.tasks):
            np.testing.assert_allclose(found[f"score_{task}"], wanted[:size, k], atol=1e-6)
    user = rows.slice(11, 1).select(["user", "viewed"])
    shown = rows.slice(11, 1).drop_columns(["user", "viewed"])
    scores = CandidateScorer(served, ["user", "viewed"]).predict(user, shown, np.zeros(1, np.int64))
    np.testing.assert_allclose(scores[0], wanted[11], atol=1e-6)


def test_a_tie_is_one_copy_in_the_exported_program(attention: Path, tmp_path: Path) -> None:
    export(attention, tmp_path / "model", formats=parse_formats(["int8"]), verbosity=-1)
    program = torch.export.load(tmp_path / "model" / "dense.pt2")
    layers = [p for name, p in program.state_dict.items() if ".poolings.0.layers." in name]
    one = torch.nn.TransformerEncoderLayer(4, 2, 64)
    assert sum(p.numel() for p in layers) == 2 * sum(p.numel() for p in one.parameters())
    assert len({p.untyped_storage().data_ptr() for p in layers}) == len(layers)
