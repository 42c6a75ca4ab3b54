"""torch-rechub's DeepFM; run by ``benchmarks.vs_peers`` in an environment of its own."""

import tempfile

import numpy as np
from common import read_task, report
from torch_rechub.basic.features import DenseFeature, SparseFeature
from torch_rechub.models.ranking import DeepFM
from torch_rechub.trainers import CTRTrainer
from torch_rechub.utils.data import DataGenerator


def main() -> None:
    """Trains one epoch and reports."""
    task = read_task()
    sizes, num_dense = task.data["sizes"], task.data["train_dense"].shape[1]
    sparse = [
        SparseFeature(f"f{i}", vocab_size=int(n), embed_dim=task.dim) for i, n in enumerate(sizes)
    ]
    dense = [DenseFeature(f"d{i}") for i in range(num_dense)]
    # As in its examples: the deep part reads dense features and embeddings, FM the embeddings.
    model = DeepFM(
        deep_features=[*dense, *sparse], fm_features=sparse, mlp_params={"dims": task.hidden}
    )

    def inputs(split: str) -> dict[str, np.ndarray]:
        found = {f"f{i}": task.data[f"{split}_rows"][:, i] for i in range(len(sizes))}
        return found | {f"d{i}": task.data[f"{split}_dense"][:, i] for i in range(num_dense)}

    train, valid, test = DataGenerator(
        inputs("train"), task.data["train_labels"]
    ).generate_dataloader(
        x_val=inputs("valid"),
        y_val=task.data["valid_labels"],
        x_test=inputs("test"),
        y_test=task.data["test_labels"],
        batch_size=task.batch_size,
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = CTRTrainer(
            model,
            optimizer_params={"lr": task.learning_rate},
            n_epoch=1,
            device="cpu",
            model_path=folder,
        )
        report(
            task,
            model.embedding.parameters(),
            lambda: trainer.train_one_epoch(train),
            lambda split: np.array(
                trainer.predict(trainer.model, valid if split == "valid" else test)
            ),
        )


if __name__ == "__main__":
    main()
