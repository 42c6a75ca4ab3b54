"""Exact AUC, logloss and calibration of a set of rows from its sorted scores.

Positives and negatives are sorted apart. The number of (positive, negative) pairs in the right
order follows from looking up each positive among the negatives; a tied pair counts one half
(Hanley and McNeil, 1982). Sums run over sorted scores, so no figure depends on the order of rows.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass
class ClassSums:
    """Sums over the rows of one class, weighted.

    Attributes:
        weight: sum of weights.
        loss: sum of weight * logloss.
        predicted: sum of weight * probability.
        rows: number of rows, not weighted.
    """

    weight: float = 0.0
    loss: float = 0.0
    predicted: float = 0.0
    rows: int = 0

    def add(self, logits: Floats, weights: Floats | None, *, is_positive: bool) -> None:
        """Adds rows of the class, given in sorted order."""
        losses = np.logaddexp(0.0, -logits if is_positive else logits)
        # 1 / (1 + e^-z) without overflow for any z.
        predicted = np.exp(-np.logaddexp(0.0, -logits))
        self.rows += len(logits)
        if weights is None:
            self.weight += len(logits)
            self.loss += float(losses.sum())
            self.predicted += float(predicted.sum())
        else:
            self.weight += float(weights.sum())
            self.loss += float((losses * weights).sum())
            self.predicted += float((predicted * weights).sum())


class RankingSums:
    """Takes rows in parts of ascending scores and gives the metrics of all of them.

    Args:
        sampling_rate: share of the negatives that the log kept; ln(rate) is added to logits and
            negatives weigh 1 / rate in logloss and calibration. AUC is the same with and without.
    """

    def __init__(self, *, sampling_rate: float) -> None:
        self._shift = math.log(sampling_rate)
        self._negative_weight = 1 / sampling_rate
        self.positives = ClassSums()
        self.negatives = ClassSums()
        self._pairs = 0.0
        self._pair_weights = [0.0, 0.0]

    def add(
        self,
        logits: npt.NDArray[np.float32],
        labels: npt.NDArray[np.uint8],
        weights: npt.NDArray[np.float32] | None,
    ) -> None:
        """Adds rows whose scores are all above those added before."""
        is_positive = labels > 0
        above, above_weights = _sorted(logits[is_positive], weights, is_positive)
        below, below_weights = _sorted(logits[~is_positive], weights, ~is_positive)
        self._add_pairs(above, above_weights, below=below, below_weights=below_weights)
        for sums, values, row_weights in (
            (self.positives, above, above_weights),
            (self.negatives, below, below_weights),
        ):
            shifted = values.astype(np.float64) + self._shift
            sums.add(shifted, row_weights, is_positive=sums is self.positives)

    def _add_pairs(
        self,
        above: npt.NDArray[np.float32],
        above_weights: Floats | None,
        *,
        below: npt.NDArray[np.float32],
        below_weights: Floats | None,
    ) -> None:
        first = np.searchsorted(below, above, side="left")
        last = np.searchsorted(below, above, side="right")
        if below_weights is None or above_weights is None:
            # Twice the number of pairs, as an integer: exact.
            twice = int(first.sum(dtype=np.int64)) + int(last.sum(dtype=np.int64))
            self._pairs += len(above) * self._pair_weights[1] + twice / 2
            self._pair_weights[0] += len(above)
            self._pair_weights[1] += len(below)
            return
        cumulated = np.concatenate([[0.0], np.cumsum(below_weights)])
        beaten = (cumulated[first] + cumulated[last]) / 2 + self._pair_weights[1]
        self._pairs += float((above_weights * beaten).sum())
        self._pair_weights[0] += float(above_weights.sum())
        self._pair_weights[1] += float(cumulated[-1])

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve, None unless both classes are there."""
        pairs = self._pair_weights[0] * self._pair_weights[1]
        return self._pairs / pairs if pairs > 0 else None

    @property
    def logloss(self) -> float | None:
        """Mean logloss, None without rows."""
        total = self.positives.weight + self.negatives.weight * self._negative_weight
        loss = self.positives.loss + self.negatives.loss * self._negative_weight
        return loss / total if total > 0 else None

    @property
    def ne(self) -> float | None:
        """Normalized entropy (He et al., 2014): logloss over that of the base rate."""
        positive = self.positives.weight
        negative = self.negatives.weight * self._negative_weight
        if positive <= 0 or negative <= 0 or self.logloss is None:
            return None
        rate = positive / (positive + negative)
        return self.logloss / -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))

    @property
    def calibration(self) -> float | None:
        """Sum of probabilities over sum of labels, None without positives."""
        if self.positives.weight <= 0:
            return None
        predicted = self.positives.predicted + self.negatives.predicted * self._negative_weight
        return predicted / self.positives.weight

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Mean probability and share of positives, None without rows."""
        negative = self.negatives.weight * self._negative_weight
        total = self.positives.weight + negative
        if total <= 0:
            return None, None
        predicted = self.positives.predicted + self.negatives.predicted * self._negative_weight
        return predicted / total, self.positives.weight / total

    @property
    def num_rows(self) -> int:
        """Rows added."""
        return self.positives.rows + self.negatives.rows


def _sorted(
    logits: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32] | None,
    chosen: npt.NDArray[np.bool_],
) -> tuple[npt.NDArray[np.float32], Floats | None]:
    if weights is None:
        return np.sort(logits), None
    row_weights = weights[chosen].astype(np.float64)
    order = np.lexsort((row_weights, logits))
    return logits[order], row_weights[order]
