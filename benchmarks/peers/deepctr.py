"""DeepCTR-Torch's DeepFM; run by ``benchmarks.vs_peers`` in an environment of its own."""

import numpy as np
import torch
from common import read_task, report
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import DeepFM


def main() -> None:
    """Trains one epoch and reports."""
    task = read_task()
    sizes, num_dense = task.data["sizes"], task.data["train_dense"].shape[1]
    columns = [
        *(SparseFeat(f"f{i}", int(n), task.dim) for i, n in enumerate(sizes)),
        *(DenseFeat(f"d{i}", 1) for i in range(num_dense)),
    ]
    model = DeepFM(
        columns,
        columns,
        dnn_hidden_units=task.hidden,
        l2_reg_linear=0,
        l2_reg_embedding=0,
        device="cpu",
    )
    model.compile(
        torch.optim.Adam(model.parameters(), lr=task.learning_rate), "binary_crossentropy"
    )

    def inputs(split: str) -> dict[str, np.ndarray]:
        found = {f"f{i}": task.data[f"{split}_rows"][:, i] for i in range(len(sizes))}
        return found | {f"d{i}": task.data[f"{split}_dense"][:, i] for i in range(num_dense)}

    report(
        task,
        model.embedding_dict.parameters(),
        lambda: model.fit(
            inputs("train"),
            task.data["train_labels"],
            batch_size=task.batch_size,
            epochs=1,
            verbose=0,
        ),
        lambda split: model.predict(inputs(split), batch_size=8192),
    )


if __name__ == "__main__":
    main()
