"""Rows scored a second on one thread: an exported INT8 model against torchrec's quantized module.

The same model twice: the folder that ``edorec export --format int8`` writes, and torchrec's
``quantize_embeddings`` of the same tables and dense part, traced by torchrec.fx and scripted and
frozen by TorchScript. Both start from row numbers here, as torchrec's module knows no raw ids; the
score of every row is compared first. Look-ups and pooling are timed alone, too: the dense part is
the same arithmetic on both sides, and "dense part alone" is what look-ups that take no time would
give. What reading raw ids from a pyarrow Table and looking them up
costs edorec besides is its own figure. Rounds alternate; ratios are medians over rounds.

    python -m benchmarks.serving [--run RUN] [--quick] [--json FILE]

Without --run it trains configs/ecommerce.yaml first.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn
from torchrec.fx import symbolic_trace
from torchrec.inference.modules import quantize_embeddings
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

import edorec
from benchmarks.figures import Figure, write_figures
from edorec.config import load_config
from edorec.embedding.formats import format_of
from edorec.serving.export import export, load_run
from edorec.serving.files import chunks, open_files
from edorec.serving.formats import parse_formats
from edorec.serving.model import ServingModel
from edorec.serving.tables import Ids, table_from
from edorec.train import run

BATCHES = {1: 200, 200: 40, 4096: 5}  # rows: calls in a round
MAX_GAP = 0.01  # of a probability; torchrec rounds the rows once more
RATIOS: list[tuple[str, str, float | None]] = [
    ("edorec", "torchrec", 3),
    ("edorec tables", "torchrec tables", None),
    ("dense part alone", "torchrec", None),
    ("edorec from raw ids", "torchrec", None),
]
Call = Callable[[], object]


class TorchrecTables(nn.Module):
    """Rows of all features to pooled embeddings (B, E)."""

    def __init__(self, tables: EmbeddingBagCollection, features: list[str]) -> None:
        super().__init__()
        self.tables = tables
        self.features = features

    def forward(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Rows of all bags, feature by feature, and the length of each bag."""
        sparse = KeyedJaggedTensor(keys=self.features, values=values, lengths=lengths)
        pooled_BE: torch.Tensor = self.tables(sparse).values()
        return pooled_BE


class TorchrecModel(nn.Module):
    """Tables before the dense part."""

    def __init__(self, tables: nn.Module, dense: nn.Module) -> None:
        super().__init__()
        self.tables = tables
        self.dense = dense

    def forward(
        self, values: torch.Tensor, lengths: torch.Tensor, dense_BN: torch.Tensor
    ) -> torch.Tensor:
        """Rows of all features to logits (B, T)."""
        return self.dense(self.tables(values, lengths), dense_BN)


def torchrec_module(model: ServingModel, run_dir: Path) -> torch.jit.ScriptModule:
    """The same model, quantized by torchrec and scripted."""
    entries = model.manifest["lookups"]
    served = [table_from(entry) for entry in model.manifest["tables"]]
    features: dict[str, list[str]] = {}
    for entry in entries:
        features.setdefault(entry["vocabulary"], []).append(entry["feature"])
    tables = EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=table.name,
                embedding_dim=table.dim,
                num_embeddings=table.num_rows,
                feature_names=features[table.name],
                pooling=PoolingType.MEAN,  # of one id it is the id's row
            )
            for table in served
        ]
    )
    for table in served:
        rows = [
            format_of(band.format).decode(
                torch.from_numpy(np.fromfile(model.folder / band.file, np.uint8)).view(
                    band.num_rows, -1
                ),
                table.dim,
            )
            for band in table.bands
            if band.num_rows
        ]
        tables.embedding_bags[table.name].weight.data.copy_(torch.cat(rows))
    names = [entry["feature"] for entry in entries]
    quantized = quantize_embeddings(
        TorchrecTables(tables, names).eval(), dtype=torch.qint8, inplace=True
    )
    trained = load_run(run_dir)
    num_dense = len(trained.config.features.dense)
    program = trained.dense_program().eval()
    example = (torch.zeros(3, sum(program.widths)), torch.zeros(3, num_dense))
    module = TorchrecModel(
        torch.jit.script(symbolic_trace(quantized)),
        torch.jit.trace(program, example),
    )
    return torch.jit.freeze(torch.jit.script(module.eval()), preserved_attrs=["tables"])


def torchrec_inputs(ids: list[Ids], dense_BN: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values, lengths and dense features."""
    values = np.concatenate([part.rows for part in ids])
    lengths = np.concatenate([np.diff(part.offsets) for part in ids]).astype(np.int32)
    return torch.from_numpy(values), torch.from_numpy(lengths), dense_BN


def contenders(
    model: ServingModel, theirs: torch.jit.ScriptModule, rows: pa.Table
) -> dict[str, Call]:
    """What is timed on some rows.

    Raises:
        RuntimeError: if the two models do not give the same scores.
    """
    inputs = model.reader.read(rows)
    ids, dense_BN = model.lookups.ids(inputs), torch.from_numpy(inputs.dense_BN)
    arguments = torchrec_inputs(ids, dense_BN)

    @torch.inference_mode()
    def from_rows() -> torch.Tensor:
        return model.logits_of_embedded(model.lookups.embed_rows(ids, len(dense_BN)), dense_BN)

    @torch.inference_mode()
    def torchrec_from_rows() -> torch.Tensor:
        logits_BT: torch.Tensor = theirs(*arguments)
        return logits_BT

    gap = (torch.sigmoid(from_rows()) - torch.sigmoid(torchrec_from_rows())).abs().max().item()
    if gap > MAX_GAP:
        raise RuntimeError(f"scores differ by {gap:.4f}: not the same model")
    embedded_BE = model.lookups.embed_rows(ids, len(dense_BN))

    @torch.inference_mode()
    def dense_alone() -> torch.Tensor:
        return model.logits_of_embedded(embedded_BE, dense_BN)

    return {
        "edorec": from_rows,
        "torchrec": torchrec_from_rows,
        "edorec tables": lambda: model.lookups.embed_rows(ids, len(rows)),
        "torchrec tables": lambda: theirs.tables.forward(*arguments[:2]),
        "dense part alone": dense_alone,
        "edorec from raw ids": lambda: model.predict(rows),
    }


def seconds(call: Call, times: int) -> float:
    """Of one call, mean."""
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def measure(run_dir: Path, num_rounds: int) -> list[Figure]:
    """Figures of each batch size."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        export(run_dir, out, formats=parse_formats(["int8"]), verbosity=-1)
        torch.set_num_threads(1)
        model = edorec.load(out)
        theirs = torchrec_module(model, run_dir)
        data = load_run(run_dir).config.data
        torch.set_num_threads(1)  # the run's settings have changed it
        assert data.test is not None
        files = open_files(data.test, folder=data.folder, key="data.test")
        _, log = next(chunks(files, model.reader.columns))
        for batch_size, times in BATCHES.items():
            calls = contenders(model, theirs, log.slice(0, batch_size).combine_chunks())
            taken: dict[str, list[float]] = {name: [] for name in calls}
            for number in range(num_rounds + 1):
                for name, call in calls.items():
                    found = seconds(call, times)
                    if number:  # the first round warms up
                        taken[name].append(found)
            for name, rounds in taken.items():
                rate = batch_size / statistics.median(rounds)
                figures.append(Figure(f"{name}, batches of {batch_size}", rate, "rows/s"))
            for ours, other, bound in RATIOS:
                pairs = zip(taken[other], taken[ours], strict=True)
                ratio = statistics.median(slow / fast for slow, fast in pairs)
                what = f"{ours} over {other}, batches of {batch_size}"
                figures.append(Figure(what, ratio, "ratio", bound))
    return figures


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--run", type=Path, help="folder of a finished run")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = args.run or Path(folder) / "run"
        if args.run is None:
            run(load_config("ecommerce.yaml", []).config, run_dir=run_dir, verbosity=0)
        figures = measure(run_dir, 3 if args.quick else 15)
    write_figures(figures, json_path=args.json)


if __name__ == "__main__":
    main()
