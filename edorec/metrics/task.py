"""All metrics of one task.

A score is a logit, always. Probabilities are 1 / (1 + e^-z) in float64; logloss comes from logits,
so it is finite for every finite logit.
"""

import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edorec.errors import NotFiniteError
from edorec.metrics.grouped import GroupedSums
from edorec.metrics.ranking import RankingSums
from edorec.metrics.rows import Columns, ScoredRows

NUM_BINS = 20
NUM_DECILES = 11  # ten, and one for ids never seen in training
Select = Callable[[Columns], npt.NDArray[np.bool_]]


class TaskMetrics:
    """Collects scored rows, then computes every metric over all of them.

    Args:
        task: name, for messages.
        sampling_rate: share of the task's negatives that the log kept; logits are shifted by its
            logarithm and negatives weigh its inverse in logloss, NE and calibration.
        frequency_features: features whose frequency deciles ``update`` is given.
        memory_rows: rows kept in memory, see ``ScoredRows``.
        spill_folder: where rows go beyond that.
    """

    def __init__(
        self,
        task: str,
        *,
        sampling_rate: float = 1.0,
        frequency_features: tuple[str, ...] = (),
        memory_rows: int = 50_000_000,
        spill_folder: Path | None = None,
    ) -> None:
        self._task = task
        self._sampling_rate = sampling_rate
        self._frequency_features = frequency_features
        self._memory_rows = memory_rows
        self._rows = ScoredRows(memory_rows=memory_rows, spill_folder=spill_folder)
        self._given: frozenset[str] = frozenset()

    def update(
        self,
        logits_B: torch.Tensor,
        labels_B: torch.Tensor,
        *,
        weights_B: torch.Tensor | None = None,
        groups_B: torch.Tensor | None = None,
        deciles_BK: torch.Tensor | None = None,
        unseen_B: torch.Tensor | None = None,
    ) -> None:
        """Adds rows; those whose label is NaN are left out.

        Args:
            logits_B: any float dtype, on the CPU.
            labels_B: float, 0, 1 or NaN.
            weights_B: sample weights, at least 0.
            groups_B: int64 group of each row.
            deciles_BK: uint8, 0 (most frequent) to 9, 10 for unseen, by frequency feature.
            unseen_B: bool, whether any id of the row was never seen in training.

        Raises:
            NotFiniteError: if a logit is not finite.
        """
        optional = {
            "weights": None if weights_B is None else weights_B.float(),
            "groups": groups_B,
            "deciles": deciles_BK,
            "unseen": unseen_B,
        }
        known = ~torch.isnan(labels_B)
        columns = {
            "logits": logits_B.float()[known].numpy(),
            "labels": labels_B[known].to(torch.uint8).numpy(),
            **{n: tensor[known].numpy() for n, tensor in optional.items() if tensor is not None},
        }
        num_bad = int((~np.isfinite(columns["logits"])).sum())
        if num_bad:
            raise NotFiniteError(f"task {self._task}: {num_bad} scores are NaN or infinite")
        self._given = frozenset(columns)
        self._rows.append(columns)

    def compute(self) -> dict[str, Any]:
        """Metrics over all rows; a metric that is undefined is None (docs/metrics.md)."""
        sums = self._ranking(None)
        if sums.auc is None:
            warnings.warn(
                f"AUC of task {self._task} is undefined: {sums.positives.rows} positives and "
                f"{sums.negatives.rows} negatives",
                stacklevel=2,
            )
        grouped = self._grouped()
        return {
            "auc": sums.auc,
            "gauc": None if grouped is None else grouped.gauc,
            "gauc_unweighted": None if grouped is None else grouped.gauc_unweighted,
            "gauc_rows": None if grouped is None else grouped.rows,
            "logloss": sums.logloss,
            "ne": sums.ne,
            "calibration": sums.calibration,
            "rows": sums.num_rows,
            "positives": sums.positives.rows,
            "by_frequency": self._by_frequency(),
            "unseen_ids": self._unseen(),
            "calibration_curve": self._calibration_curve(),
        }

    def _ranking(self, select: Select | None) -> RankingSums:
        """Sums over the selected rows, in parts of ascending scores that fit in memory."""
        sums = RankingSums(sampling_rate=self._sampling_rate)
        edges = self._part_edges()
        for low, high in pairwise(edges):
            columns = self._gather(select, low=low, high=high)
            sums.add(columns["logits"], columns["labels"], columns.get("weights"))
        return sums

    def _part_edges(self) -> list[float]:
        if not self._rows.is_spilled:
            return [-np.inf, np.inf]
        num_parts = 2 * -(-self._rows.num_rows // self._memory_rows)
        cuts = np.quantile(self._score_sample(), np.arange(1, num_parts) / num_parts)
        return [-np.inf, *np.unique(cuts).tolist(), np.inf]

    def _score_sample(self) -> npt.NDArray[np.float64]:
        step = max(1, self._rows.num_rows // 1_000_000) if self._rows.is_spilled else 1
        parts = [chunk["logits"][::step] for chunk in self._rows.chunks("logits")]
        return np.concatenate([*parts, np.empty(0, np.float32)]).astype(np.float64)

    def _gather(self, select: Select | None, *, low: float, high: float) -> Columns:
        """Logits, labels and weights of the selected rows with low <= logit < high."""
        names = [name for name in ("logits", "labels", "weights") if name in self._given]
        extra = [name for name in ("deciles", "unseen") if name in self._given and select]
        parts: list[Columns] = []
        for chunk in self._rows.chunks(*names, *extra):
            keep = (chunk["logits"] >= low) & (chunk["logits"] < high)
            if select is not None:
                keep &= select(chunk)
            parts.append({name: chunk[name][keep] for name in names})
        if not parts:
            return {"logits": np.empty(0, np.float32), "labels": np.empty(0, np.uint8)}
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    def _grouped(self) -> GroupedSums | None:
        if "groups" not in self._given:
            return None
        names = [n for n in ("groups", "logits", "labels", "weights") if n in self._given]
        num_parts = -(-self._rows.num_rows // self._memory_rows) if self._rows.is_spilled else 1
        sums = GroupedSums()
        for part in range(num_parts):
            parts: list[Columns] = []
            for chunk in self._rows.chunks(*names):
                keep = chunk["groups"] % num_parts == part
                parts.append({name: chunk[name][keep] for name in names})
            columns = {name: np.concatenate([p[name] for p in parts]) for name in names}
            sums.add(
                columns["groups"], columns["logits"], columns["labels"], columns.get("weights")
            )
        return sums

    def _by_frequency(self) -> list[dict[str, Any]]:
        if "deciles" not in self._given:
            return []
        entries = []
        for k, feature in enumerate(self._frequency_features):
            for decile in range(NUM_DECILES):
                sums = self._ranking(_in_decile(k, decile))
                if sums.num_rows:
                    entries.append({"feature": feature, "decile": decile, **_summary(sums)})
        return entries

    def _unseen(self) -> dict[str, Any] | None:
        if "unseen" not in self._given:
            return None
        return _summary(self._ranking(lambda chunk: chunk["unseen"].astype(np.bool_)))

    def _calibration_curve(self) -> list[dict[str, Any]]:
        """Mean probability and share of positives in bins of about equally many rows."""
        if not self._rows.num_rows:
            return []
        cuts = np.quantile(self._score_sample(), np.arange(1, NUM_BINS) / NUM_BINS)
        edges = [-np.inf, *np.unique(cuts).tolist(), np.inf]
        bins = []
        for low, high in pairwise(edges):
            sums = RankingSums(sampling_rate=self._sampling_rate)
            columns = self._gather(None, low=low, high=high)
            sums.add(columns["logits"], columns["labels"], columns.get("weights"))
            predicted, observed = sums.rates
            if predicted is not None:
                bins.append({"predicted": predicted, "observed": observed, "rows": sums.num_rows})
        return bins


def _in_decile(k: int, decile: int) -> Select:
    return lambda chunk: chunk["deciles"][:, k] == decile


def _summary(sums: RankingSums) -> dict[str, Any]:
    return {
        "rows": sums.num_rows,
        "positives": sums.positives.rows,
        "auc": sums.auc,
        "logloss": sums.logloss,
        "calibration": sums.calibration,
    }
