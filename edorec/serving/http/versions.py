"""The version of a model that serves, and its change for another without a gap.

The model's path is a folder or, better, a symlink to one: a new version is put beside the old and
the symlink renamed over (``ln -s v2 next && mv -T next current``). The server looks at the path
every few seconds and on SIGHUP, loads and warms what it finds, and only then lets new requests see
it. Requests that came earlier end with the version they began with. A folder that does not load
changes nothing.
"""

import asyncio
import logging
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from edorec.errors import InputError
from edorec.serving.candidates import CandidateScorer
from edorec.serving.http import tensors
from edorec.serving.http.errors import RequestError
from edorec.serving.http.fields import fields_of
from edorec.serving.http.metrics import Metrics
from edorec.serving.model import ServingModel

_LOG = logging.getLogger("edorec.serve")
_MAX_SCORERS = 64
# Batches of one row, of two and of many may run different code the first time.
_WARM_ROWS = (1, 2, 200, 200)
_WARM_VALUES = {"integer": 0, "string": "0", "number": 0.0}


class Version:
    """A loaded model.

    Args:
        name: of its folder.
        model: the model.

    Attributes:
        name: the same.
        fields: inputs of the model.
        outputs: names of its scores, ``score_<task>``.
    """

    def __init__(self, name: str, model: ServingModel) -> None:
        self.name = name
        self.fields = fields_of(model.signature)
        self.outputs = tuple(f"score_{task}" for task in model.signature.tasks)
        self._model = model
        # By the inputs that rows share: a client gives the same ones each time.
        self._scorers: dict[tuple[str, ...], CandidateScorer] = {}

    def score(
        self, shared: pa.Table, table: pa.Table, shared_of_R: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Scores by output name, float32 (R); called by one thread at a time.

        Args:
            shared: inputs that several rows have in common.
            table: the other inputs of R rows.
            shared_of_R: row of ``shared`` for each.
        """
        names = tuple(shared.column_names)
        if names not in self._scorers:
            if len(self._scorers) >= _MAX_SCORERS:
                self._scorers.clear()
            self._scorers[names] = CandidateScorer(self._model, names)
        scores_RT = self._scorers[names].predict(shared, table, shared_of_R)
        return {name: np.ascontiguousarray(scores_RT[:, k]) for k, name in enumerate(self.outputs)}

    def warm(self) -> None:
        """Scores made-up rows, so that everything is compiled and paged in that can be."""
        columns = {}
        for field in self.fields:
            value = _WARM_VALUES[field.kind]
            columns[field.name] = pa.array([[value] if field.is_list else value], field.type)
        row = pa.table(columns)
        for num_rows in _WARM_ROWS:
            places = np.zeros(num_rows, np.int64)
            self.score(pa.table({}), row.take(places), places)


def load_version(folder: Path, *, verify: bool) -> Version:
    """Opens and warms an exported model; ``verify`` reads its tables against their checksums.

    Raises:
        InputError: if the folder is not sound.
    """
    version = Version(folder.name, ServingModel(folder, verify=verify))
    tensors.check_names(version.fields)
    version.warm()
    return version


class Versions:
    """The serving version.

    Args:
        path: folder of a model, or a symlink to one.
        metrics: where loads are counted.
        verify: read tables against their checksums; else they are checked by size.
    """

    def __init__(self, path: Path, metrics: Metrics, *, verify: bool) -> None:
        self._path = path
        self._verify = verify
        self._metrics = metrics
        self._current: Version | None = None
        self._seen: tuple[str, int, int] | None = None
        self._lock = asyncio.Lock()

    @property
    def is_ready(self) -> bool:
        """Whether a version serves."""
        return self._current is not None

    @property
    def current(self) -> Version:
        """The version for a new request.

        Raises:
            RequestError: status 503 until the first is loaded.
        """
        if self._current is None:
            raise RequestError(503, "the model is being loaded")
        return self._current

    async def load(self) -> None:
        """Loads and warms what the path leads to now, and serves it from then on.

        Raises:
            InputError: if it does not load; what served before goes on.
        """
        async with self._lock:
            started = time.perf_counter()
            try:
                self._seen = self._identity()
                version = await asyncio.to_thread(
                    load_version, Path(self._seen[0]), verify=self._verify
                )
            except InputError:
                self._metrics.reloads.labels("failed").inc()
                raise
            self._current = version
            self._metrics.reloads.labels("loaded").inc()
            self._metrics.model.clear()
            self._metrics.model.labels(version.name).set(1)
            seconds = time.perf_counter() - started
            _LOG.info("version %s serves (loaded and warmed in %.1f s)", version.name, seconds)

    async def reload(self) -> None:
        """The same, with a line in the log instead of an error."""
        try:
            await self.load()
        except InputError as error:
            _LOG.error("the new version does not load, the old one goes on: %s", error)

    async def watch(self, *, every_seconds: float) -> None:
        """Reloads whenever the path has come to lead elsewhere, until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            try:
                has_changed = self._identity() != self._seen
            except InputError:  # between two renames there may be no folder for a moment
                continue
            if has_changed:
                await self.reload()

    def _identity(self) -> tuple[str, int, int]:
        """What changes when the path leads to another folder, or the folder is replaced."""
        try:
            real = self._path.resolve(strict=True)
            status = real.stat()
        except OSError as error:
            raise InputError(f"{self._path}: {error.strerror}") from error
        return str(real), status.st_ino, status.st_mtime_ns
