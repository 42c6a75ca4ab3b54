"""Converts the Census-Income (KDD) text files to Parquet; README.md says where they come from.

python data/census/prepare.py --raw census --out data/census/log/census_income_kdd
"""

import argparse
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from edorec.errors import InputError
from edorec.output_folder import output_folder

# In the order of the files; int32 where the name stands in NUMBERS.
COLUMNS = (
    *("age", "class_worker", "det_ind_code", "det_occ_code", "education", "wage_per_hour"),
    *("hs_college", "marital_stat", "major_ind_code", "major_occ_code", "race", "hisp_origin"),
    *("sex", "union_member", "unemp_reason", "full_or_part_emp", "capital_gains"),
    *("capital_losses", "stock_dividends", "tax_filer_stat", "region_prev_res", "state_prev_res"),
    *("det_hh_fam_stat", "det_hh_summ", "instance_weight", "mig_chg_msa", "mig_chg_reg"),
    *("mig_move_reg", "mig_same", "mig_prev_sunbelt", "num_emp", "fam_under_18"),
    *("country_father", "country_mother", "country_self", "citizenship", "own_or_self"),
    *("vet_question", "vet_benefits", "weeks_worked", "year"),
)
NUMBERS = frozenset(
    (
        *("age", "det_ind_code", "det_occ_code", "wage_per_hour", "capital_gains"),
        *("capital_losses", "stock_dividends", "num_emp", "own_or_self", "vet_benefits"),
        *("weeks_worked", "year"),
    )
)
INCOME = "income"
COLLEGE = (
    "Some college but no degree",
    "Associates degree-occup /vocational",
    "Associates degree-academic program",
    "Bachelors degree(BA AB BS)",
    "Masters degree(MA MS MEng MEd MSW MBA)",
    "Prof school degree (MD DDS DVM LLB JD)",
    "Doctorate degree(PhD EdD)",
)
SPLITS = ("train", "valid", "test")


def main() -> None:
    """Parses the command line and converts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--raw", type=Path, required=True, help="folder of census-income.data and .test, also .gz"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "log" / "census_income_kdd"
    )
    args = parser.parse_args()
    try:
        rows = convert(args.raw, args.out)
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    for split, num_rows in rows.items():
        print(f"{split:6}{num_rows:>13,} rows")


def convert(raw: Path, out: Path) -> dict[str, int]:
    """Writes ``out``/train.parquet, valid.parquet and test.parquet; returns their rows.

    The official test rows are halved: the first, third ... validate, the others test.

    Raises:
        InputError: if a file is missing or a line cannot be read.
    """
    with output_folder(out, tuple(f"{split}.parquet" for split in SPLITS)) as folder:
        train, test = (_read(raw, name) for name in ("census-income.data", "census-income.test"))
        odd = pa.array([row % 2 == 1 for row in range(len(test))])
        tables = {"train": train, "valid": test.filter(pc.invert(odd)), "test": test.filter(odd)}
        for split, table in tables.items():
            pq.write_table(table, folder / f"{split}.parquet")
    return {split: len(table) for split, table in tables.items()}


def _read(raw: Path, name: str) -> pa.Table:
    file = next((path for path in (raw / name, raw / f"{name}.gz") if path.exists()), None)
    if file is None:
        raise InputError(f"{raw}: no {name}; data/census/README.md says where to get it")
    names = [*COLUMNS, INCOME]
    try:
        table = pa.csv.read_csv(
            file,
            read_options=pa.csv.ReadOptions(column_names=names, use_threads=False),
            parse_options=pa.csv.ParseOptions(quote_char=False),
            convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
        )
        text = {name: pc.utf8_trim_whitespace(table[name]) for name in names}
        columns = {name: _typed(name, text[name]) for name in COLUMNS}
    except pa.ArrowInvalid as error:
        raise InputError(f"{file}: {error}") from error
    labels = {
        "label_income_50k": pc.equal(text[INCOME], "50000+."),
        "label_never_married": pc.equal(text["marital_stat"], "Never married"),
        "label_college": pc.is_in(text["education"], pa.array(COLLEGE)),
    }
    return pa.table(columns | {name: label.cast(pa.int8()) for name, label in labels.items()})


def _typed(name: str, text: pa.ChunkedArray) -> pa.ChunkedArray:
    if name in NUMBERS:
        return text.cast(pa.int32())
    if name == "instance_weight":
        return text.cast(pa.float64())
    return pc.if_else(pc.equal(text, "?"), None, text)


if __name__ == "__main__":
    main()
