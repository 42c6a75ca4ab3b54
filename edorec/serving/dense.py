"""The dense part as a program: torch.export, without pickled objects in the file."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from edorec.models.model import MultiTaskModel

EXAMPLE_ROWS = 3  # any number above one, which torch.export would take for a constant


class DenseProgram(nn.Module):
    """Concatenated pooled embeddings (B, E) and dense features (B, N) to logits (B, T)."""

    def __init__(self, model: MultiTaskModel, dims: Sequence[int], shifts: Sequence[float]) -> None:
        """``shifts``: logarithm of each task's sampling rate, added to its logit."""
        super().__init__()
        self.model = model
        self._dims = list(dims)
        self.register_buffer("shifts_T", torch.tensor(shifts))

    def forward(self, pooled_BE: torch.Tensor, dense_BN: torch.Tensor) -> torch.Tensor:
        """Logits (B, T), corrected for sampled negatives."""
        pooled = list(torch.split(pooled_BE, self._dims, dim=1)) if self._dims else []
        logits_BT: torch.Tensor = self.model(pooled, dense_BN) + self.shifts_T
        return logits_BT


def save_program(path: Path, program: DenseProgram, *, num_dense: int, num_embedded: int) -> None:
    """Writes the program for batches of any size.

    Args:
        path: a .pt2 file.
        program: on the CPU.
        num_dense: dense features.
        num_embedded: sum of the dims of all features.
    """
    example = (torch.zeros(EXAMPLE_ROWS, num_embedded), torch.zeros(EXAMPLE_ROWS, num_dense))
    batch = {0: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(program.eval(), example, dynamic_shapes=(batch, batch))
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    # Example inputs are the one pickled part; nothing needs them, and an empty part loads.
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(path, "w") as target:
        for part in source.infolist():
            is_pickled = _is_pickled(source, part.filename)
            target.writestr(part.filename, b"" if is_pickled else source.read(part))


def load_program(path: Path) -> nn.Module:
    """The program as a module that is called with (B, E) and (B, N)."""
    module: nn.Module = torch.export.load(path).module()
    return module


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
