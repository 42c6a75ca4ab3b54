"""Converts Criteo's display advertising logs to Parquet; README.md says where they come from.

    python data/criteo/prepare.py --raw train.txt --out data/criteo/log

Reads the raw text as a stream: memory does not grow with the log. Rows stay in order, that of time.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from edorec.errors import InputError
from edorec.output_folder import output_folder

NUM_INTS, NUM_CATS = 13, 26
SCHEMA = pa.schema(
    [
        ("label", pa.int8()),
        *((f"int_{i}", pa.int32()) for i in range(1, NUM_INTS + 1)),
        *((f"cat_{i}", pa.string()) for i in range(1, NUM_CATS + 1)),
    ]
)
SPLITS = ("train", "valid", "test")
BLOCK_BYTES = 64 * 1024 * 1024


def main() -> None:
    """Parses the command line and converts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--raw", nargs="+", type=Path, required=True, help="train.txt, or day_0 day_1 ..., also .gz"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "log")
    parser.add_argument(
        "--valid-share", type=float, default=1 / 14, help="of the rows, near the end"
    )
    parser.add_argument("--test-share", type=float, default=1 / 14, help="of the rows, at the end")
    args = parser.parse_args()
    try:
        rows = convert(args.raw, args.out, valid_share=args.valid_share, test_share=args.test_share)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    for split, num_rows in rows.items():
        print(f"{split:6}{num_rows:>13,} rows")


def convert(
    files: list[Path], out: Path, *, valid_share: float, test_share: float
) -> dict[str, int]:
    """Writes ``out``/train.parquet, valid.parquet and test.parquet; returns their rows.

    Raises:
        InputError: if a file is missing or a line cannot be read, naming both.
    """
    for file in files:
        if not file.exists():
            raise InputError(f"{file}: no such file; data/criteo/README.md says where to get it")
    total = sum(_num_lines(file) for file in files)
    num_test, num_valid = round(total * test_share), round(total * valid_share)
    ends = (total - num_test - num_valid, total - num_test, total)
    done = 0
    with (
        output_folder(out, tuple(f"{split}.parquet" for split in SPLITS)) as folder,
        ExitStack() as stack,
    ):
        writers = [
            stack.enter_context(pq.ParquetWriter(folder / f"{split}.parquet", SCHEMA))
            for split in SPLITS
        ]
        for table in (table for file in files for table in _tables(file)):
            for writer, start, end in zip(writers, (0, *ends), ends, strict=False):
                first, last = max(start, done), min(end, done + len(table))
                if first < last:
                    writer.write_table(table.slice(first - done, last - first))
            done += len(table)
            print(f"{done:,} of {total:,} rows", file=sys.stderr)
    return dict(zip(SPLITS, (ends[0], num_valid, num_test), strict=True))


def _num_lines(file: Path) -> int:
    last = b"\n"
    count = 0
    with pa.input_stream(str(file)) as stream:
        while block := stream.read(BLOCK_BYTES):
            count += block.count(b"\n")
            last = block[-1:]
    return count + (last != b"\n")


def _tables(file: Path) -> Iterator[pa.Table]:
    bad: list[pc.InvalidRow] = []

    def refuse(row: pc.InvalidRow) -> str:
        bad.append(row)
        return "error"

    try:
        # One thread: only then does pyarrow know the number of a bad line.
        reader = pc.open_csv(
            str(file),
            read_options=pc.ReadOptions(
                column_names=SCHEMA.names, use_threads=False, block_size=BLOCK_BYTES
            ),
            parse_options=pc.ParseOptions(
                delimiter="\t", quote_char=False, invalid_row_handler=refuse
            ),
            convert_options=pc.ConvertOptions(
                column_types=SCHEMA, null_values=[""], strings_can_be_null=True
            ),
        )
        for batch in reader:
            yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as error:
        if not bad:
            raise InputError(f"{file}: {error}") from error
        raise InputError(
            f"{file} line {bad[0].number}: {bad[0].actual_columns} fields between tabs, "
            f"expected {bad[0].expected_columns}"
        ) from error


if __name__ == "__main__":
    main()
