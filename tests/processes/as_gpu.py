"""``edorec train`` with the tables of a GPU, whose kernels Triton's interpreter runs on the CPU."""

import sys

from edorec.cli import train_app
from edorec.embedding import row_tables
from edorec.embedding.placement import PLACEMENTS

if __name__ == "__main__":
    row_tables._default_kernel = lambda _device: "triton"
    PLACEMENTS["cpu"] = ("ram", "uvm")
    sys.argv[0] = "edorec train"
    train_app()
