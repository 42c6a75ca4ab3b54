"""One training step: forward, loss, backward with the fused table update, dense optimizer."""

import math
from typing import Any

import torch

from edorec.config import RunConfig
from edorec.data.batch import Batch
from edorec.devices import dense_arithmetic
from edorec.errors import NotFiniteError
from edorec.layers.sequences import Padded
from edorec.losses import FixedWeights, UncertaintyWeights, loss_sums, mean_losses
from edorec.optimization import learning_rate_factor
from edorec.recommender import Recommender


class TrainingStep:
    """Takes batches one by one and updates the recommender in place.

    Attributes:
        recommender: what is trained.
        num_steps: steps done.
        num_rows: rows trained on.
        num_skipped_rows: rows of batches that batch normalization cannot take (a last batch of
            one row).
        loss: loss of the last step, NaN before the first.
        losses_T: mean loss of each task in the last step.
        task_weights: losses of the tasks to the loss of the step.
    """

    def __init__(self, recommender: Recommender, config: RunConfig, *, total_steps: int) -> None:
        self.recommender = recommender
        self._config = config
        self._total_steps = total_steps
        self.task_weights = _task_weights(config).to(recommender.device)
        self._processes = recommender.processes
        self._model = self._processes.data_parallel(recommender.model)
        groups: list[dict[str, Any]] = [
            {"params": list(recommender.model.parameters())},
            {"params": list(self.task_weights.parameters()), "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups,
            lr=config.train.learning_rate,
            weight_decay=config.train.weight_decay,
            fused=True,
        )
        self.num_steps = 0
        self.num_rows = 0
        self.num_skipped_rows = 0
        self.loss = math.nan
        self.losses_T = torch.zeros(len(config.tasks))

    def __call__(self, batch: Batch) -> float:
        """Does one step and returns its loss.

        Raises:
            NotFiniteError: if the loss is not finite, naming the step and what is not finite.
        """
        if len(batch) == 1 and self._config.model.batch_norm:
            self.num_skipped_rows += 1
            return self.loss
        settings = self._config.train
        device = self.recommender.device
        self._set_learning_rates()
        self._processes.seed_step(settings.seed, self.num_steps)
        with dense_arithmetic(settings.matmul_precision, device):
            embedded = self.recommender.embed(batch)
            dense_BN = batch.dense_BN.to(device)
            logits_BT = self._model(embedded, dense_BN)
        sums_T, totals_T = loss_sums(
            logits_BT,
            batch.labels_BT.to(device),
            weights_B=None if batch.weights_B is None else batch.weights_B.to(device),
        )
        losses_T, num_rows = self._mean_losses(sums_T, totals_T, len(batch))
        loss = self.task_weights(losses_T)
        if not math.isfinite(loss.item()):
            raise NotFiniteError(self._explain(embedded, dense_BN, losses_T))
        self._optimizer.zero_grad()
        loss.backward()
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.recommender.model.parameters(), settings.clip_norm)
        self._optimizer.step()
        self.num_steps += 1
        self.num_rows += num_rows
        share = 1 / self._processes.world_size
        self.losses_T = self._processes.sum(losses_T.detach() * share)
        self.loss = float(self._processes.sum(loss.detach() * share))
        return self.loss

    def _mean_losses(
        self, sums_T: torch.Tensor, totals_T: torch.Tensor, num_rows: int
    ) -> tuple[torch.Tensor, int]:
        """Losses whose mean over the processes is that of one process, and the rows of all."""
        size = torch.tensor([num_rows], dtype=torch.float64)
        totals = self._processes.sum(torch.cat([totals_T.detach().cpu().double(), size]))
        losses_T = mean_losses(sums_T, totals[:-1].to(totals_T))
        return losses_T * self._processes.world_size, int(totals[-1])

    def tensors(self) -> dict[str, Any]:
        """Live dense weights and optimizer state; tables are not among them."""
        return {
            "model": self.recommender.model.state_dict(),
            "task_weights": self.task_weights.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def figures(self) -> dict[str, Any]:
        """Counters and losses, as JSON can hold them."""
        return {
            "num_steps": self.num_steps,
            "num_rows": self.num_rows,
            "num_skipped_rows": self.num_skipped_rows,
            "loss": self.loss,
            "losses_T": self.losses_T.tolist(),
        }

    def restore(self, tensors: dict[str, Any], figures: dict[str, Any]) -> None:
        """Takes over what ``tensors`` and ``figures`` of another step returned."""
        self.recommender.model.load_state_dict(tensors["model"])
        self.task_weights.load_state_dict(tensors["task_weights"])
        self._optimizer.load_state_dict(tensors["optimizer"])
        self.num_steps = figures["num_steps"]
        self.num_rows = figures["num_rows"]
        self.num_skipped_rows = figures["num_skipped_rows"]
        self.loss = figures["loss"]
        self.losses_T = torch.tensor(figures["losses_T"])

    def events(self) -> list[dict[str, Any]]:
        """What the report should mention."""
        events: list[dict[str, Any]] = []
        if self.num_skipped_rows:
            why = "batch normalization needs two rows, the last batch of an epoch had one"
            events.append({"kind": "skipped_rows", "rows": self.num_skipped_rows, "why": why})
        if isinstance(self.task_weights, UncertaintyWeights):
            weights = zip(self._config.tasks, self.task_weights.weights().tolist(), strict=True)
            events.append({"kind": "task_weights", **{name: round(w, 4) for name, w in weights}})
        return events

    def _set_learning_rates(self) -> None:
        settings = self._config.train
        factor = learning_rate_factor(
            self.num_steps,
            total_steps=self._total_steps,
            warmup_steps=settings.warmup_steps,
            decay=settings.decay,
        )
        for group in self._optimizer.param_groups:
            group["lr"] = settings.learning_rate * factor
        self.recommender.tables.set_learning_rate(self._config.embedding.learning_rate * factor)

    def _explain(
        self,
        embedded: list[torch.Tensor | Padded],
        dense_BN: torch.Tensor,
        losses_T: torch.Tensor,
    ) -> str:
        tasks = [
            name
            for name, value in zip(self._config.tasks, losses_T.tolist(), strict=True)
            if not math.isfinite(value)
        ]
        bad = [
            f"embedding of feature {name}"
            for name, vectors in zip(self.recommender.lookups, embedded, strict=True)
            if not torch.isfinite(vectors[0] if isinstance(vectors, Padded) else vectors).all()
        ]
        bad += [
            f"dense feature {name}"
            for name, column_B in zip(self._config.features.dense, dense_BN.T, strict=True)
            if not torch.isfinite(column_B).all()
        ]
        bad += [
            f"dense weight {name}"
            for name, weight in self.recommender.model.named_parameters()
            if not torch.isfinite(weight).all()
        ]
        where = ", ".join(bad[:3]) or "none of the inputs or weights, so the logits overflowed"
        return (
            f"the loss is not finite at step {self.num_steps + 1} (task {', '.join(tasks)}); "
            f"not finite: {where}. Lower embedding.learning_rate or train.learning_rate, "
            "or set train.clip_norm"
        )


def _task_weights(config: RunConfig) -> FixedWeights | UncertaintyWeights:
    if config.train.task_weights == "uncertainty":
        return UncertaintyWeights(len(config.tasks))
    return FixedWeights([task.loss_weight for task in config.tasks.values()])
