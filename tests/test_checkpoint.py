"""Model files: whole or not at all, strict about what they hold."""

from pathlib import Path

import pytest
import torch
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from edorec.checkpoint import load_model, save_model
from edorec.embedding.fused import FusedEmbeddingBagCollection
from edorec.errors import InputError


def tables(
    rows: int = 5, *, names: tuple[str, ...] = ("user", "item.id")
) -> FusedEmbeddingBagCollection:
    return FusedEmbeddingBagCollection(
        [
            EmbeddingBagConfig(
                name=name, num_embeddings=rows, embedding_dim=4, feature_names=[name]
            )
            for name in names
        ],
        pooling={},
        num_zero_rows={},
        optimizer="rowwise_adagrad",
        learning_rate=0.1,
        initial_accumulator=0.5,
        init_std=1.0,
        seed=int(torch.randint(1000, (1,))),
        device=torch.device("cpu"),
    )


def test_a_saved_model_loads_equal_in_place(tmp_path: Path) -> None:
    saved, loaded = tables(), tables()
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    saved.tables_state()["user"]["state0"].fill_(7)
    live = loaded.table_weight("item.id")
    save_model(tmp_path / "best.pt", model=model, tables=saved, step=12)
    assert load_model(tmp_path / "best.pt", model=other, tables=loaded) == 12
    assert torch.equal(model.weight, other.weight)
    assert torch.equal(live, saved.table_weight("item.id"))
    assert torch.equal(loaded.tables_state()["user"]["state0"], torch.full((5,), 7.0))
    assert [path.name for path in tmp_path.iterdir()] == ["best.pt"]


def test_a_truncated_or_absent_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    model = torch.nn.Linear(3, 2)
    with pytest.raises(InputError, match="no such checkpoint"):
        load_model(path, model=model, tables=tables())
    save_model(path, model=model, tables=tables(), step=1)
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(InputError, match=r"best\.pt: not a complete checkpoint"):
        load_model(path, model=model, tables=tables())


def test_every_difference_is_listed_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    save_model(path, model=torch.nn.Linear(3, 2), tables=tables(), step=1)
    live = tables(6, names=("user", "brand"))
    before = live.table_weight("user").clone()
    with pytest.raises(InputError) as error:
        load_model(path, model=torch.nn.Linear(3, 4), tables=live)
    text = str(error.value)
    assert "user.weight is float32 (5, 4) there and float32 (6, 4) here" in text
    assert "item.id.weight is float32 (5, 4) there and absent here" in text
    assert "brand.weight is absent there" in text
    assert "dense.weight is float32 (2, 3) there and float32 (4, 3) here" in text
    assert torch.equal(live.table_weight("user"), before)
