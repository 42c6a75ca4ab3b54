"""Rows that go on in another table: their bytes, their formats, and where new ids start."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from edorec.data.hashing import mix
from edorec.embedding import carry
from edorec.embedding.admission import RowMap
from edorec.embedding.bands import Band
from edorec.embedding.carry import Origin, carry_rows, find_origin
from edorec.embedding.collection import EdoEmbeddingBagCollection
from edorec.embedding.formats import FORMATS
from edorec.embedding.fused import FusedEmbeddingBagCollection
from edorec.embedding.states import STATES
from tests.embedding.batches import jagged, table

DIM = 6
TRAINED = [name for name, row_format in FORMATS.items() if row_format.trains]
cuts = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(TRAINED), st.sampled_from(list(STATES))),
    min_size=1,
    max_size=3,
)


def trained(bands: list[Band], *, optimizer: str, seed: int) -> EdoEmbeddingBagCollection:
    """A table whose rows and states have all been updated."""
    num_rows = sum(band.num_rows for band in bands)
    tables = EdoEmbeddingBagCollection(
        [table("t", num_rows, DIM, bands=bands)],
        optimizer=optimizer,
        init_std=0.3,
        initial_accumulator=1e-3,
        seed=seed,
    )
    for _ in range(2):
        pooled = tables(jagged({"t": [[row] for row in range(num_rows)]})).values()
        gradient = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(seed))
        pooled.backward(gradient / 20)
    return tables


def flat_rows(tables: EdoEmbeddingBagCollection) -> list[tuple[str, bytes, torch.Tensor]]:
    """Of each row the key of its formats, its bytes with the state, and its values."""
    weight = tables.tables.weight("t")
    rows: list[tuple[str, bytes, torch.Tensor]] = []
    for key, band in tables.tables_state()["t"].items():
        for row in band:
            formats = key.partition("_")[2]
            rows.append((formats, row.numpy().tobytes(), weight[len(rows)]))
    return rows


def bands_of(parts: list[tuple[int, str, str]], num_rows: int, optimizer: str) -> list[Band]:
    """Bands with ``num_rows`` in all."""
    bands, left = [], num_rows
    for count, row_format, state in parts:
        state = state if optimizer == "rowwise_adagrad" else "fp32"
        bands.append(Band(min(count, left), row_format, state))
        left -= bands[-1].num_rows
    last = bands[-1]
    return [*bands[:-1], Band(last.num_rows + left, last.format, last.state)]


@given(
    earlier=cuts,
    now=cuts,
    origins=st.lists(st.integers(-1, 7), min_size=1, max_size=12),
    new=st.integers(0, 2**12),
    optimizer=st.sampled_from(["rowwise_adagrad", "adagrad", "sgd", "adam"]),
    chunk=st.sampled_from([1, 3, 1 << 14]),
)
@settings(max_examples=60, deadline=None)
def test_rows_keep_their_bytes_or_are_rounded_once(
    earlier: list[tuple[int, str, str]],
    now: list[tuple[int, str, str]],
    origins: list[int],
    new: int,
    optimizer: str,
    chunk: int,
) -> None:
    source = trained(bands_of(earlier, 8, optimizer), optimizer=optimizer, seed=1)
    target = trained(bands_of(now, len(origins), optimizer), optimizer=optimizer, seed=2)
    before, own = flat_rows(source), flat_rows(target)
    is_new = np.array([new >> k & 1 for k in range(len(origins))], np.bool_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(carry, "CHUNK_ROWS", chunk)
        changed = carry_rows(
            target.tables_state()["t"],
            source.tables_state()["t"],
            Origin(np.array(origins), is_new),
            dim=DIM,
            optimizer=optimizer,
            with_state=True,
        )
    expected_changes = 0
    for row, (formats, found, values) in enumerate(flat_rows(target)):
        if origins[row] < 0:
            assert found == own[row][1]
            continue
        other_formats, other, other_values = before[origins[row]]
        size = FORMATS[formats.split("_")[0]].row_bytes(DIM)
        if formats == other_formats:
            assert found[:size] == other[:size]
            assert found[size:] == (own[row][1][size:] if is_new[row] else other[size:])
            continue
        expected_changes += 1
        row_format = FORMATS[formats.split("_")[0]]
        again = row_format.decode(
            row_format.encode(other_values.unsqueeze(0), torch.tensor(0.5)), DIM
        )
        assert torch.equal(values, again[0])
        if is_new[row]:
            assert found[size:] == own[row][1][size:]
        elif optimizer == "rowwise_adagrad":
            names = formats.split("_")[1], other_formats.split("_")[1]
            sums = [
                STATES[name].decode(torch.frombuffer(bytearray(data), dtype=torch.uint8)[None])
                for name, data in zip(
                    names,
                    (found[size:], other[FORMATS[other_formats.split("_")[0]].row_bytes(DIM) :]),
                    strict=True,
                )
            ]
            torch.testing.assert_close(sums[0], sums[1], rtol=0.1, atol=1e-9)
    assert changed == expected_changes


def test_another_optimizers_state_stays_initial() -> None:
    source = trained([Band(4, "int8")], optimizer="adagrad", seed=1)
    target = trained([Band(4, "int8")], optimizer="rowwise_adagrad", seed=2)
    own, before = flat_rows(target), flat_rows(source)
    origin = Origin(np.array([3, 2, 1, 0]), np.zeros(4, np.bool_))
    carry_rows(
        target.tables_state()["t"],
        source.tables_state()["t"],
        origin,
        dim=DIM,
        optimizer="adagrad",
        with_state=False,
    )
    size = FORMATS["int8"].row_bytes(DIM)
    for row, (_, found, _) in enumerate(flat_rows(target)):
        assert found == before[3 - row][1][:size] + own[row][1][size:]


def test_rows_in_fbgemms_memory_move_too() -> None:
    source, target = (
        FusedEmbeddingBagCollection(
            [
                EmbeddingBagConfig(
                    name="t", num_embeddings=rows, embedding_dim=4, feature_names=["t"]
                )
            ],
            pooling={},
            num_zero_rows={},
            optimizer="rowwise_adagrad",
            learning_rate=0.1,
            initial_accumulator=0.5,
            init_std=1.0,
            seed=rows,
            device=torch.device("cpu"),
        )
        for rows in (5, 4)
    )
    source.tables_state()["t"]["state0"].copy_(torch.arange(5.0))
    own = target.table_weight("t").clone()
    origin = Origin(np.array([4, -1, 0, 2]), np.array([False, False, True, False]))
    carry_rows(
        target.tables_state()["t"],
        source.tables_state()["t"],
        origin,
        dim=4,
        optimizer="rowwise_adagrad",
        with_state=True,
    )
    weight, earlier = target.table_weight("t"), source.table_weight("t")
    assert torch.equal(weight[[0, 2, 3]], earlier[[4, 0, 2]])
    assert torch.equal(weight[1], own[1])
    assert target.tables_state()["t"]["state0"].tolist() == [4.0, 0.5, 0.5, 2.0]
    bands = trained([Band(4, "fp32")], optimizer="sgd", seed=1).tables_state()["t"]
    with pytest.raises(ValueError, match="one table has bands and the other is FBGEMM's"):
        carry_rows(
            bands,
            source.tables_state()["t"],
            origin,
            dim=4,
            optimizer="sgd",
            with_state=True,
        )


@given(
    num_earlier=st.integers(1, 12),
    earlier_own=st.integers(0, 12),
    own=st.integers(0, 14),
    buckets=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_every_id_goes_on_from_the_row_that_it_had(
    num_earlier: int, earlier_own: int, own: int, buckets: int, data: st.DataObject
) -> None:
    """Ids are numbers: ranks of the earlier vocabulary, and three that are new."""
    new_order = data.draw(st.permutations(range(num_earlier + 3)))
    kept = new_order[: data.draw(st.integers(1, len(new_order)))]
    hashes = mix(np.array(kept, np.uint64))
    ranks = np.array([kept.index(i) if i in kept else -1 for i in range(num_earlier)])
    earlier = RowMap(min(earlier_own, num_earlier), buckets, rare_from=0, oov_rate=0.0)
    now = RowMap(min(own, len(kept)), buckets, rare_from=0, oov_rate=0.0)
    origin = find_origin(now, earlier, hashes=hashes, ranks=ranks)
    assert len(origin.rows_R) == now.num_rows
    for rank, identity in enumerate(kept):
        encoded = int(hashes[rank]) >> 32 << 32 | (identity + 1 if identity < num_earlier else 0)
        word = np.array([encoded], np.uint64).view(np.int64)
        before, after = (
            int(row_map.rows(ids, draws=None)[0])
            for row_map, ids in (
                (earlier, word),
                (now, (word & ~np.int64(0xFFFFFFFF)) | np.int64(rank + 1)),
            )
        )
        if after >= now.num_own_rows and before < earlier.num_own_rows:
            continue  # its row is given up
        assert origin.rows_R[after] == before
        if after < now.num_own_rows:
            assert origin.is_new_R[after] == (before >= earlier.num_own_rows)
    other = RowMap(now.num_own_rows, buckets + 1, rare_from=0, oov_rate=0.0)
    origin = find_origin(other, earlier, hashes=hashes, ranks=ranks)
    assert (origin.rows_R[other.num_own_rows :] == -1).all()
