"""edorec trains click-through-rate models inside an embedding-memory budget."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edorec.serving.model import ServingModel

__version__ = "0.1.0"


def load(folder: str | Path, *, verify: bool = False) -> "ServingModel":
    """Opens a model that ``edorec export`` has written.

    Args:
        folder: of the model.
        verify: read every table against its checksum; else by size only, so that opening is
            instant whatever the size.

    Returns:
        A model with ``predict(DataFrame or pyarrow Table)`` and ``signature``.

    Raises:
        InputError: if the folder is not sound.
    """
    # torch takes seconds to load, and ``import edorec`` must not.
    from edorec.serving.model import ServingModel

    return ServingModel(folder, verify=verify)
