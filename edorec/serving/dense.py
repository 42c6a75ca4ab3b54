"""The dense part as a program: torch.export, without pickled objects in the file."""

import io
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn

from edorec.layers.sequences import Padded
from edorec.models.model import MultiTaskModel
from edorec.serving.tables import width

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
EXAMPLE_ROWS = 3  # any number above one, which torch.export would take for a constant


class DenseProgram(nn.Module):
    """Embeddings of all features side by side (B, E) and dense features (B, N) to logits (B, T).

    Args:
        model: the dense part.
        features: dim of each feature and, for a list that the model pools, its longest length.
        shifts: logarithm of each task's sampling rate, added to its logit.
    """

    def __init__(
        self,
        model: MultiTaskModel,
        features: Sequence[tuple[int, int | None]],
        shifts: Sequence[float],
    ) -> None:
        super().__init__()
        self.model = model
        self._features = list(features)
        self.widths = [width(max_length, dim) for dim, max_length in features]
        self.register_buffer("shifts_T", torch.tensor(shifts))

    def forward(self, embedded_BE: torch.Tensor, dense_BN: torch.Tensor) -> torch.Tensor:
        """Logits (B, T), corrected for sampled negatives."""
        parts = torch.split(embedded_BE, self.widths, dim=1) if self.widths else ()
        embedded = [
            part_BW if max_length is None else _lists(part_BW, dim)
            for part_BW, (dim, max_length) in zip(parts, self._features, strict=True)
        ]
        logits_BT: torch.Tensor = self.model(embedded, dense_BN) + self.shifts_T
        return logits_BT


def _lists(part_BW: torch.Tensor, dim: int) -> Padded:
    """Lists that stand in a row with their length behind them."""
    ids_BLD = part_BW[:, :-1].unflatten(1, (-1, dim))
    return Padded(ids_BLD, part_BW[:, -1].long())


def save_program(path: Path, program: DenseProgram, *, num_dense: int) -> None:
    """Writes the program for batches of any size.

    Args:
        path: a .pt2 file.
        program: on the CPU.
        num_dense: dense features.
    """
    example = (torch.zeros(EXAMPLE_ROWS, sum(program.widths)), torch.zeros(EXAMPLE_ROWS, num_dense))
    batch = {0: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(program.eval(), example, dynamic_shapes=(batch, batch))
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    # Example inputs are the one pickled part; nothing needs them, and an empty part loads.
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w") as target:
        for part in source.infolist():
            is_pickled = _is_pickled(source, part.filename)
            target.writestr(part.filename, b"" if is_pickled else source.read(part))


def load_program(path: Path) -> Program:
    """The program as a function of (B, E) and (B, N) that any number of threads may call.

    The module of an exported program walks its graph in Python and checks its inputs at each call:
    1.2 ms for one row where the operations take 0.1 ms. Its operations are recorded once for
    TorchScript's interpreter instead, which gives the same bits. A recording keeps sizes as
    constants, so a program that computes with the batch size is called as it is.
    """
    exported = torch.export.load(path)
    module = exported.module(check_guards=False).requires_grad_(False)

    def run(embedded_BE: torch.Tensor, dense_BN: torch.Tensor) -> torch.Tensor:
        logits_BT: torch.Tensor = module.forward(embedded_BE, dense_BN)  # without its input checks
        return logits_BT

    if any(node.target is torch.ops.aten.sym_size.int for node in exported.graph.nodes):
        return run
    inputs = exported.graph_signature.user_inputs
    example = tuple(
        torch.zeros(EXAMPLE_ROWS, node.meta["val"].shape[1])
        for node in exported.graph.nodes
        if node.op == "placeholder" and node.name in inputs
    )
    program: Program = torch.jit.trace(run, example)
    return program


def pickled_parts(path: Path) -> list[str]:
    """Members of a .pt2 file that hold pickled objects."""
    with zipfile.ZipFile(path) as archive:
        return [name for name in archive.namelist() if _is_pickled(archive, name)]


def _is_pickled(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether a member is a pickle, or an archive of torch.save, which holds one."""
    with archive.open(name) as member:
        head = member.read(4)
    has_suffix = name.endswith((".pt", ".pkl", ".pickle"))
    return bool(head) and (has_suffix or head == b"PK\x03\x04")
