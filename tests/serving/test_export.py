"""Exported folders: equal to the run, complete, checked, small."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import edorec
from edorec.errors import InputError
from edorec.serving.card import sizes
from edorec.serving.export import export
from edorec.serving.formats import Formats, parse_formats
from tests.serving.rows import odd_rows


@pytest.mark.parametrize(("name", "gap", "of_fp32"), [("int8", 0.01, 1 / 3), ("int4", 0.05, 1 / 5)])
def test_smaller_formats_stay_close(trained_int8, tmp_path, name, gap, of_fp32):
    export(trained_int8, tmp_path / "same", formats=Formats(), verbosity=-1)
    manifest = export(trained_int8, tmp_path / "small", formats=parse_formats([name]), verbosity=-1)
    rows = odd_rows()
    same = edorec.load(tmp_path / "same").predict(rows).to_pandas().to_numpy()
    small = edorec.load(tmp_path / "small").predict(rows).to_pandas().to_numpy()
    assert np.abs(same - small).max() <= gap
    rows_stored = sum(b["num_rows"] for t in manifest["tables"] for b in t["bands"])
    assert sizes(manifest)["tables"] <= of_fp32 * rows_stored * 64
    for aucs in manifest["evaluation"]["tasks"].values():
        assert abs(aucs["auc_before"] - aucs["auc_after"]) <= 0.002


def test_formats_by_table_and_frequency(trained, tmp_path):
    formats = parse_formats(["item=int2", "user=int4:100:int2"])
    manifest = export(trained, tmp_path / "m", formats=formats, max_auc_loss=0.5, verbosity=-1)
    of = {t["name"]: [b["format"] for b in t["bands"]] for t in manifest["tables"]}
    assert set(of["item"]) == {"int2", "ternary:0.1"}
    # Hot INT8 rows become INT4 from 100 look-ups, INT2 below; trained INT4 rows become INT2, and
    # ternary ones stay, which are smaller.
    assert of["user"] == ["int4", "int2", "int2", "ternary:0.1", "int4"]
    with pytest.raises(InputError, match=r"--format itm: there is no such table; item, user"):
        export(trained, tmp_path / "n", formats=parse_formats(["itm=int4"]), verbosity=-1)


@pytest.mark.parametrize("text", ["int3", "int8:pq", "int8:10:int4:20:pq", "int8:x:pq", "item="])
def test_a_format_that_is_none_is_named(text):
    with pytest.raises(InputError, match=f"--format {text}: "):
        parse_formats([text])


def test_product_quantization_of_cold_rows(trained_int8, tmp_path):
    """Vectors of hot ids stay; all pooled vectors equal sums over decoded rows."""
    formats = parse_formats(["int8:50:pq"])
    export(trained_int8, tmp_path / "same", formats=Formats(), verbosity=-1)
    manifest = export(trained_int8, tmp_path / "pq", formats=formats, max_auc_loss=1, verbosity=-1)
    assert [b["format"] for b in manifest["tables"][1]["bands"]] == ["int8", "pq", "int8"]
    same, small = edorec.load(tmp_path / "same"), edorec.load(tmp_path / "pq")
    rows = odd_rows()
    vectors = [model.embed(model.reader.read(rows)) for model in (same, small)]
    counts = pq.read_table(trained_int8 / "vocabularies" / "user.parquet").to_pydict()
    hot = {i for i, n in zip(counts["id"], counts["count"], strict=True) if n >= 50}
    is_hot = torch.tensor([user in hot for user in rows["user"].to_pylist()])
    users = [vector[:, 16:32] for vector in vectors]  # features: item, user, viewed
    assert is_hot.any()
    assert not is_hot.all()
    assert torch.equal(users[0][is_hot], users[1][is_hot])
    torch.testing.assert_close(users[0], users[1], atol=2e-3, rtol=1e-3)  # a centroid for each row
    # Lists of cold and hot ids: the mean over single look-ups.
    lists = rows.slice(0, 200)
    singles = [
        [
            small.embed(
                small.reader.read(lists.slice(0, 1).set_column(2, "viewed", pa.array([[i]])))
            )
            for i in ids or []
            if i is not None
        ]
        for ids in lists["viewed"].to_pylist()
    ]
    wanted = torch.cat(
        [torch.stack(v).mean(0)[:, 32:] if v else torch.zeros(1, 16) for v in singles]
    )
    torch.testing.assert_close(vectors[1][:200, 32:], wanted, atol=1e-6, rtol=1e-5)


def test_auto_takes_the_smallest_within_the_bound(trained_int8, tmp_path):
    auto = parse_formats(["auto"])
    loose = export(trained_int8, tmp_path / "a", formats=auto, max_auc_loss=0.9, verbosity=-1)
    strict = export(trained_int8, tmp_path / "b", formats=auto, max_auc_loss=1e-9, verbosity=-1)
    assert sizes(loose)["tables"] < sizes(strict)["tables"]
    assert {b["format"] for t in loose["tables"] for b in t["bands"]} == {"int4", "int2"}


def test_rare_ids_may_be_served_by_buckets(trained_int8, tmp_path):
    manifest = export(
        trained_int8, tmp_path / "m", formats=Formats(), min_count=5, max_auc_loss=1, verbosity=-1
    )
    counts = pq.read_table(trained_int8 / "vocabularies" / "item.parquet")["count"].to_numpy()
    item = manifest["tables"][0]
    assert item["bands"][0]["num_rows"] == (counts >= 5).sum()
    rare = pq.read_table(trained_int8 / "vocabularies" / "item.parquet")["id"][-1].as_py()
    model = edorec.load(tmp_path / "m")
    row = odd_rows().slice(0, 1)
    hashes = model.reader.read(row.set_column(1, "item", pa.array([rare]))).hashes[0][0]
    bucket = int(hashes[0] >> np.uint64(32)) % item["num_buckets"]
    assert (
        model.lookups.rows(model.lookups.numbers(["item"])[0], hashes)[0]
        == (counts >= 5).sum() + bucket
    )


def test_a_bound_that_does_not_hold_leaves_nothing(trained_int8, tmp_path):
    out = tmp_path / "models" / "m"
    with pytest.raises(InputError, match="the AUC of click falls from"):
        export(trained_int8, out, formats=parse_formats(["int2"]), max_auc_loss=-1, verbosity=-1)
    assert list(out.parent.iterdir()) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from edorec.serving import export

def die(evaluation):
    os.kill(os.getpid(), signal.SIGKILL)

export._check_loss = die
export.export(Path(sys.argv[1]), Path(sys.argv[2]), formats=export.Formats(), verbosity=-1)
"""


def test_a_killed_export_leaves_no_model(trained, tmp_path):
    out = tmp_path / "models" / "m"
    command = [sys.executable, "-c", KILLED, str(trained), str(out)]
    killed = subprocess.run(command, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = out.parent.iterdir()
    assert left.name.startswith(".new-")
    assert "evaluation" not in json.loads((left / "model.json").read_text())
    with pytest.raises(InputError, match="was not finished"):
        edorec.load(left)
    export(trained, out, formats=Formats(), verbosity=-1)
    assert list(out.parent.iterdir()) == [out]
    with pytest.raises(InputError, match="m exists; give another --out"):
        export(trained, out, formats=Formats(), verbosity=-1)


def test_the_folder_is_tables_index_and_program(model):
    manifest = json.loads((model / "model.json").read_text())
    total = sum(path.stat().st_size for path in model.rglob("*") if path.is_file())
    parts = sizes(manifest)
    assert set(manifest["files"]) == {
        str(p.relative_to(model))
        for p in model.rglob("*")
        if p.is_file() and p.name != "model.json"
    }
    text = (model / "model.json").stat().st_size + (model / "MODEL_CARD.md").stat().st_size
    assert total == sum(parts.values()) + text
    assert "AUC before" in (model / "MODEL_CARD.md").read_text()


def damaged(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder / "copy")
    return folder / "copy"


def test_a_damaged_folder_is_not_loaded(model, tmp_path):
    folder = damaged(model, tmp_path)
    rows = next(path for path in (folder / "tables").iterdir() if path.stat().st_size)
    content = bytearray(rows.read_bytes())
    content[-1] ^= 1
    rows.write_bytes(content)
    edorec.load(folder)  # the size is right, and tables are only mapped
    with pytest.raises(InputError, match=f"{rows.name} is damaged: its checksum differs"):
        edorec.load(folder, verify=True)
    rows.write_bytes(content[:-1])
    with pytest.raises(InputError, match=r"is damaged: it has \d+ bytes"):
        edorec.load(folder)
    rows.unlink()
    with pytest.raises(InputError, match="is incomplete"):
        edorec.load(folder)


def test_pickles_and_unknown_files_are_not_loaded(model, tmp_path):
    folder = damaged(model, tmp_path)
    (folder / "extra.pkl").write_bytes(b"x")
    with pytest.raises(InputError, match=r"a file that is not the model's: extra\.pkl"):
        edorec.load(folder)
    (folder / "extra.pkl").unlink()
    program = folder / "dense.pt2"
    torch.export.save(
        torch.export.export(torch.nn.Linear(1, 1), (torch.zeros(2, 1),)), program
    )  # with example inputs, which are pickled
    manifest = json.loads((folder / "model.json").read_text())
    from edorec.serving.folder import file_entries

    manifest["files"] = file_entries(folder)
    (folder / "model.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="holds pickled objects"):
        edorec.load(folder)


def test_no_raw_id_is_in_the_folder(trained, model):
    texts = pq.read_table(trained / "vocabularies" / "item.parquet")["id"].to_pylist()
    names = [text.encode() for text in texts if text]
    content = b"".join(path.read_bytes() for path in (model / "index").iterdir())
    assert not any(name in content for name in names if len(name) > 3)
