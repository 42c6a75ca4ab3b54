"""FuxiCTR's DeepFM; run by ``benchmarks.vs_peers`` in an environment of its own.

The wheel has layers, trainer and loaders without the models, so the model here is that of its
model zoo: FM over the embeddings and an MLP over them, linear terms of their own.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Task, read_task, report
from fuxictr.features import FeatureMap
from fuxictr.pytorch.dataloaders import RankDataLoader
from fuxictr.pytorch.layers import FactorizationMachine, FeatureEmbedding, MLP_Block
from fuxictr.pytorch.models import BaseModel


class DeepFM(BaseModel):
    """As in model_zoo/DeepFM."""

    def __init__(self, feature_map: FeatureMap, task: Task, folder: str) -> None:
        super().__init__(feature_map, verbose=0, model_root=folder, metrics=["AUC"])
        self.embedding_layer = FeatureEmbedding(feature_map, task.dim)
        self.fm = FactorizationMachine(feature_map)
        self.mlp = MLP_Block(
            input_dim=feature_map.sum_emb_out_dim(),
            output_dim=1,
            hidden_units=task.hidden,
            hidden_activations="relu",
            output_activation=None,
        )
        self.compile("adam", "binary_crossentropy", task.learning_rate)
        self.reset_parameters()
        self.model_to_device()
        # What ``fit`` sets before the epoch; it would also evaluate and save inside it.
        self._max_gradient_norm, self._total_steps = 10.0, 0
        self._eval_steps, self._stop_training = 1 << 40, False

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Probabilities (B, 1)."""
        X = self.get_inputs(inputs)
        embedded = self.embedding_layer(X)
        logits = self.fm(X, embedded) + self.mlp(embedded.flatten(start_dim=1))
        return {"y_pred": self.output_activation(logits)}


def write_splits(task: Task, folder: str) -> FeatureMap:
    """Its NPZ files, one column an array, and its feature map."""
    sizes, num_dense = task.data["sizes"], task.data["train_dense"].shape[1]
    for split in ("train", "valid", "test"):
        columns: dict[str, Any] = {"label": task.data[f"{split}_labels"]}
        columns |= {f"f{i}": task.data[f"{split}_rows"][:, i] for i in range(len(sizes))}
        columns |= {f"d{i}": task.data[f"{split}_dense"][:, i] for i in range(num_dense)}
        np.savez(Path(folder) / f"{split}.npz", **columns)
    feature_map = FeatureMap("log", folder)
    for i, size in enumerate(sizes):
        # Its tables have a row for padding besides.
        feature_map.features[f"f{i}"] = {
            "source": "",
            "type": "categorical",
            "vocab_size": int(size) + 1,
            "padding_idx": int(size),
        }
    for i in range(num_dense):
        feature_map.features[f"d{i}"] = {"source": "", "type": "numeric"}
    feature_map.labels = ["label"]
    feature_map.num_fields = feature_map.get_num_fields()
    feature_map.total_features = int(sizes.sum())
    feature_map.default_emb_dim = task.dim
    feature_map.set_column_index()
    return feature_map


def main() -> None:
    """Trains one epoch and reports."""
    task = read_task()
    with tempfile.TemporaryDirectory() as folder:
        feature_map = write_splits(task, folder)
        model = DeepFM(feature_map, task, folder)
        train, valid, test = RankDataLoader(
            feature_map,
            stage="both",
            train_data=f"{folder}/train.npz",
            valid_data=f"{folder}/valid.npz",
            test_data=f"{folder}/test.npz",
            batch_size=task.batch_size,
            shuffle=True,
            data_format="npz",
        )
        report(
            task,
            model.embedding_layer.parameters(),
            lambda: model.train_epoch(train),
            lambda split: model.predict(valid if split == "valid" else test),
        )


if __name__ == "__main__":
    main()
