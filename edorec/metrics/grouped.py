"""GAUC: the AUC inside each group (user), averaged over groups (Zhu et al., KDD 2017).

Only groups with both classes count. The weighted mean weighs a group by its rows (by the sum of its
sample weights where there are any), the unweighted one counts every group once. Inside a group all
rows weigh the same.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass
class GroupedSums:
    """Sums over groups; parts must not share a group.

    Attributes:
        groups: groups with both classes.
        rows: rows in those groups.
    """

    groups: int = 0
    rows: int = 0
    _auc: float = 0.0
    _weighted_auc: float = 0.0
    _weight: float = 0.0

    def add(
        self,
        groups: npt.NDArray[np.int64],
        logits: npt.NDArray[np.float32],
        labels: npt.NDArray[np.uint8],
        weights: npt.NDArray[np.float32] | None,
    ) -> None:
        """Adds all rows of some groups."""
        if not len(groups):
            return
        keys = (logits, groups) if weights is None else (weights, logits, groups)
        order = np.lexsort(keys)
        groups, logits = groups[order], logits[order]
        positive = (labels[order] > 0).astype(np.int64)
        starts = _run_starts(groups[1:] != groups[:-1])
        sizes = np.diff(np.append(starts, len(groups)))
        twice_ranks = _twice_ranks(groups, logits, starts=starts, sizes=sizes)
        num_positive = np.add.reduceat(positive, starts)
        num_negative = sizes - num_positive
        rank_sums = np.add.reduceat(positive * twice_ranks, starts)
        both = (num_positive > 0) & (num_negative > 0)
        pairs = rank_sums[both] / 2 - num_positive[both] * (num_positive[both] + 1) / 2
        auc = pairs / (num_positive[both] * num_negative[both])
        if weights is None:
            weight = sizes[both].astype(np.float64)
        else:
            weight = np.add.reduceat(weights[order].astype(np.float64), starts)[both]
        self.groups += int(both.sum())
        self.rows += int(sizes[both].sum())
        self._auc += float(auc.sum())
        self._weighted_auc += float((auc * weight).sum())
        self._weight += float(weight.sum())

    @property
    def gauc(self) -> float | None:
        """Mean over groups weighted by their rows, None if no group has both classes."""
        return self._weighted_auc / self._weight if self._weight > 0 else None

    @property
    def gauc_unweighted(self) -> float | None:
        """Plain mean over groups, None if no group has both classes."""
        return self._auc / self.groups if self.groups else None


def _run_starts(changes: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def _twice_ranks(
    groups: npt.NDArray[np.int64],
    logits: npt.NDArray[np.float32],
    *,
    starts: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
) -> npt.NDArray[np.int64]:
    """Twice the rank (from 1) of each row in its group, ties at their mean rank."""
    tie_starts = _run_starts((groups[1:] != groups[:-1]) | (logits[1:] != logits[:-1]))
    tie_sizes = np.diff(np.append(tie_starts, len(groups)))
    before = np.repeat(tie_starts, tie_sizes) - np.repeat(starts, sizes)
    twice: npt.NDArray[np.int64] = 2 * before + np.repeat(tie_sizes, tie_sizes) + 1
    return twice
