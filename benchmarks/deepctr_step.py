"""Rows per second of DeepCTR-Torch's DeepFM; run by ``benchmarks.training_step --deepctr``.

Runs in an environment of its own (DeepCTR-Torch wants TensorFlow), so it imports nothing of this
repository. Arguments: an NPZ file (rows int64 (F, N), sizes (F), dense float32 (N, C), labels (N)),
batch size, dim, rounds, threads, widths of the MLP. Prints a JSON list, one figure a round.
"""

import json
import sys
import time

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM


def main() -> None:
    """Trains one epoch a round; the first warms up."""
    path, batch_size, dim, rounds, threads, *hidden = sys.argv[1:]
    torch.set_num_threads(int(threads))
    data = np.load(path)
    sparse = [SparseFeat(f"f{i}", int(n), int(dim)) for i, n in enumerate(data["sizes"])]
    dense = [DenseFeat(f"d{i}", 1) for i in range(data["dense"].shape[1])]
    columns = [*sparse, *dense]
    model = DeepFM(
        columns,
        columns,
        dnn_hidden_units=[int(width) for width in hidden],
        l2_reg_linear=0,
        l2_reg_embedding=0,
        device="cpu",
    )
    model.compile("adam", "binary_crossentropy")
    inputs = {f"f{i}": rows for i, rows in enumerate(data["rows"])}
    inputs |= {f"d{i}": data["dense"][:, i] for i in range(len(dense))}
    speeds = []
    for number in range(int(rounds) + 1):
        started = time.perf_counter()
        model.fit(inputs, data["labels"], batch_size=int(batch_size), epochs=1, verbose=0)
        if number:
            speeds.append(len(data["labels"]) / (time.perf_counter() - started))
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
