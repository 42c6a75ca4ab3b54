"""Row formats by name. A new one is a module here and a line in ``FORMATS``."""

from edorec.embedding.formats import fp16, fp32, int2, int4, int8, sparse28
from edorec.embedding.formats.row_format import RowFormat

FORMATS: dict[str, RowFormat] = {
    module.FORMAT.name: module.FORMAT for module in (fp32, fp16, int8, int4, int2, sparse28)
}
