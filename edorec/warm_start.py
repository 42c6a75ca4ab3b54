"""Training that starts from the best model of another run.

Rows go with their ids: an id keeps its row and optimizer state wherever its rank has moved to, and
is stored in the format of its new band. An id that had no row of its own starts from that of the
bucket it was in. What does not fit (a table of another dim, a layer of another shape) starts anew,
and is named.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from edorec.checkpoint import read_model
from edorec.config import RunConfig, load_config
from edorec.data.growth import rank_map, read_rank_map
from edorec.data.prepared import Prepared, load_prepared
from edorec.data.vocabulary import RankTable, read_hashes
from edorec.embedding.admission import I64
from edorec.embedding.bands import Formats
from edorec.embedding.carry import carry_rows, find_origin
from edorec.errors import InputError
from edorec.processes import ONE, Processes
from edorec.recommender import Recommender, TableMaps, build_recommender, table_maps

Summary = dict[str, Any]


def new_recommender(
    config: RunConfig,
    prepared: Prepared,
    *,
    device: torch.device,
    processes: Processes = ONE,
    formats: Formats | None = None,
) -> tuple[Recommender, Summary | None]:
    """An untrained recommender, or one that starts from ``train.warm_start``.

    Args:
        config: of the run.
        prepared: its data.
        device: where the recommender goes.
        processes: that the tables are spread over.
        formats: see ``build_recommender``.

    Returns:
        The recommender, and what was taken over and what was not (see ``warm_start``).

    Raises:
        ConfigError: if the model cannot work on these features.
        InputError: if ``train.warm_start`` is no finished run.
    """
    recommender = build_recommender(
        config, prepared.vocabularies, device=device, processes=processes, formats=formats
    )
    if config.train.warm_start is None:
        return recommender, None
    return recommender, warm_start(recommender, config, prepared, Path(config.train.warm_start))


def warm_start(
    recommender: Recommender, config: RunConfig, prepared: Prepared, run_dir: Path
) -> Summary:
    """Takes over rows, their optimizer state and dense weights of the best model of a run.

    Args:
        recommender: untrained, changed in place.
        config: of the new run.
        prepared: its data.
        run_dir: folder of the earlier run.

    Returns:
        ``{"run", "step", "same_statistics", "tables": {table: {"rows", "kept", "new", "reencoded",
        "left_out"}}, "dense": {"loaded", "left_out"}}``; ``left_out`` is null or says why.

    Raises:
        InputError: if the folder holds no finished run.
    """
    if not (run_dir / "config.yaml").exists():
        raise InputError(f"train.warm_start: {run_dir} holds no run (config.yaml is missing)")
    earlier_config = load_config(str(run_dir / "config.yaml"), []).config
    earlier = load_prepared(run_dir / "vocabularies")
    saved = read_model(run_dir / "checkpoints" / "best.pt")
    tables = _Tables(earlier_config, earlier, saved["tables"])
    growth = prepared.manifest["growth"]
    has_grown = growth is not None and growth["key"] == earlier.key
    optimizers = {c.embedding.optimizer for c in (config, earlier_config)}
    summary: Summary = {
        "run": str(run_dir),
        "step": saved["step"],
        "same_statistics": has_grown or prepared.key == earlier.key,
        "same_optimizer": len(optimizers) == 1,
        "tables": {
            name: tables.carry(name, recommender, config, prepared, has_grown=has_grown)
            for name in recommender.row_maps
        },
        "dense": _load_dense(recommender, saved["dense"]),
    }
    if len(optimizers) == 1:  # rounding, and Adam's corrections, go on
        recommender.tables.num_updates = saved["step"]
    return summary


class _Tables:
    """The tables of the earlier run."""

    def __init__(
        self, config: RunConfig, prepared: Prepared, states: dict[str, dict[str, torch.Tensor]]
    ) -> None:
        self._optimizer = config.embedding.optimizer
        self._prepared = prepared
        self._states = states
        self._maps: TableMaps = table_maps(config, prepared.vocabularies)

    def carry(
        self,
        table: str,
        recommender: Recommender,
        config: RunConfig,
        prepared: Prepared,
        *,
        has_grown: bool,
    ) -> Summary:
        """Takes over the rows of one table."""
        target = recommender.tables.tables_state()[table]
        row_map, dim = recommender.row_maps[table], recommender.dims[table]
        why = self._why_not(table, target, dim)
        if why is not None:
            return {"rows": row_map.num_rows, "left_out": why}
        name = recommender.vocabulary_of(table)
        new = prepared.vocabularies[name]
        hashes = read_hashes(new.path)
        if has_grown and name in prepared.manifest["rank_maps"]:
            ranks: I64 = read_rank_map(new.path.with_name(prepared.manifest["rank_maps"][name]))
        else:
            ranks = rank_map(self._prepared.vocabularies[name].path, RankTable(hashes))
        origin = find_origin(row_map, self._maps.row_maps[table], hashes=hashes, ranks=ranks)
        reencoded = carry_rows(
            target,
            self._states[table],
            origin,
            dim=dim,
            optimizer=self._optimizer,
            with_state=config.embedding.optimizer == self._optimizer,
        )
        return {
            "rows": row_map.num_rows,
            "kept": int(((origin.rows_R >= 0) & ~origin.is_new_R).sum()),
            "new": int(origin.is_new_R.sum()),
            "reencoded": reencoded,
            "left_out": None,
        }

    def _why_not(self, table: str, target: dict[str, torch.Tensor], dim: int) -> str | None:
        """Why a table cannot go on, None if it can."""
        if table not in self._states:
            return "it is not in the earlier run"
        earlier = self._maps.dims[table]
        if earlier != dim:
            return f"its dim is {dim}, and {earlier} in the earlier run"
        if ("weight" in target) != ("weight" in self._states[table]):
            return "the one is in FBGEMM's memory and the other in edorec's"
        return None


def _load_dense(recommender: Recommender, saved: dict[str, torch.Tensor]) -> Summary:
    """Loads the weights that have a name and shape of the model's own."""
    live = recommender.model.state_dict()
    fit = {n: t for n, t in saved.items() if n in live and live[n].shape == t.shape}
    recommender.model.load_state_dict(fit, strict=False)
    return {"loaded": len(fit), "left_out": sorted(live.keys() - fit.keys())}


def print_warm_start(summary: Summary, console: Console) -> None:
    """Says what was taken over and what was not."""
    for line in _lines(summary):
        console.print(line, highlight=False, soft_wrap=True, markup=False)


def _lines(summary: Summary) -> Iterable[str]:
    yield f"starting from {summary['run']}, step {summary['step']:,}"
    for name, table in summary["tables"].items():
        if table["left_out"]:
            yield f"table {name} starts anew: {table['left_out']}"
            continue
        counts = f"{table['kept']:,} of {table['rows']:,} rows kept, {table['new']:,} new"
        yield f"table {name}: {counts}, {table['reencoded']:,} in another format"
    dense = summary["dense"]
    if dense["left_out"]:
        yield f"dense weights that start anew: {', '.join(dense['left_out'])}"
    if not summary["same_optimizer"]:
        yield "the optimizer of the tables is another one, so its state starts anew"
    if not summary["same_statistics"]:
        yield (
            "dense columns and bins are scaled by these data, and the model has learned with those "
            "of the earlier run; data.extend keeps them"
        )
