"""The Open Inference Protocol on its own: what its reference client makes is read back."""

import json

import numpy as np
import pyarrow as pa
import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st

from edorec.errors import InputError
from edorec.serving.http import tensors
from edorec.serving.http.errors import RequestError
from edorec.serving.http.fields import Field

FIELDS = [
    Field("user", "integer", is_list=False),
    Field("item", "string", is_list=False),
    Field("viewed", "integer", is_list=True),
    Field("tags", "string", is_list=True),
    Field("price", "number", is_list=False),
]
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
ROW = st.tuples(
    INT64,
    TEXT,
    st.lists(INT64, max_size=4),
    st.lists(TEXT, max_size=3),
    st.floats(allow_infinity=False, allow_nan=False),
)


def texts(values: list[str]) -> np.ndarray:
    return np.array([value.encode() for value in values], object)


@given(st.lists(ROW, min_size=1, max_size=6), st.booleans())
def test_tensors_of_the_reference_client_are_read_back(rows, binary):
    users, items, viewed, tags, prices = zip(*rows, strict=True)
    values = {
        "user": np.array(users, np.int64),
        "item": texts(items),
        "viewed": np.array([i for ids in viewed for i in ids], np.int64),
        "viewed.lengths": np.array([*map(len, viewed)], np.int64),
        "tags": texts([tag for some in tags for tag in some]),
        "tags.lengths": np.array([*map(len, tags)], np.int64),
        "price": np.array(prices, np.float64),
    }
    inputs = []
    for name, array in values.items():
        datatype = {"O": "BYTES", "i": "INT64", "f": "FP64"}[array.dtype.kind]
        inputs.append(triton.InferInput(name, [len(array)], datatype))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    body, length = triton.InferenceServerClient.generate_request_body(inputs)
    header = None if length is None else str(length)
    parsed, _ = tensors.parse_infer(body, header, FIELDS, max_rows=100)
    wanted = [dict(zip(("user", "item", "viewed", "tags", "price"), r, strict=True)) for r in rows]
    for row in wanted:
        row["viewed"], row["tags"] = list(row["viewed"]), list(row["tags"])
    assert parsed.table.to_pylist() == wanted
    assert parsed.shared.num_columns == 0


def parse(*inputs: dict, rest: bytes = b"", **more) -> tuple:
    head = json.dumps({"inputs": list(inputs), **more}).encode()
    return tensors.parse_infer(head + rest, str(len(head)), FIELDS, max_rows=3)


USER = {"name": "user", "datatype": "INT64", "shape": [2], "data": [1, 2]}


def binary(size: int, **more) -> dict:
    return USER | {"parameters": {"binary_data_size": size}} | more


@pytest.mark.parametrize(
    ("inputs", "rest", "text"),
    [
        ([], b"", "inputs: wanted at least one of user, item, viewed, viewed.lengths, tags"),
        ([USER, USER], b"", r"inputs\[1\]: user comes twice"),
        ([USER | {"datatype": "FP32"}], b"", "user: datatype must be INT8 or INT16"),
        ([USER | {"shape": [2, 2]}], b"", r"user: shape must be \[n\] or \[n, 1\]"),
        ([USER | {"shape": [-1]}], b"", r"user: shape must be \[n\] or \[n, 1\]"),
        ([USER | {"shape": [3]}], b"", "user: 2 values, which is not the shape"),
        ([USER | {"data": 5}], b"", "user: data must be a list"),
        ([USER | {"data": [1, "x"]}], b"", r"user\[1\]: wanted an integer or null, got a string"),
        ([binary(17)], b"1" * 16, "user: binary_data_size must be a number of bytes; 16 are left"),
        ([binary(15)], b"1" * 15, "user: 15 bytes of binary data, which is not the shape"),
        ([binary(16)], b"1" * 20, "4 bytes follow the last binary tensor"),
        ([USER | {"parameters": 3}], b"", "parameters: wanted an object"),
        (
            [binary(8, name="item", datatype="BYTES")],
            b"\x09\0\0\0abcd",
            "item: the binary data end within a string",
        ),
        (
            [binary(10, name="item", datatype="BYTES")],
            b"\x01\0\0\0a\x01\0\0\0\xff",
            "item: string 1 is not UTF-8",
        ),
        (
            [USER, {"name": "price", "datatype": "FP32", "shape": [1], "data": [1]}],
            b"",
            "inputs: different numbers of rows: 2 of user, 1 of price",
        ),
        (
            [{"name": "viewed", "datatype": "INT64", "shape": [1], "data": [1]}],
            b"",
            "viewed: a list takes both viewed and viewed.lengths",
        ),
        (
            [
                {"name": "viewed", "datatype": "INT64", "shape": [1], "data": [1]},
                {"name": "viewed.lengths", "datatype": "INT64", "shape": [2], "data": [2, -1]},
            ],
            b"",
            "viewed.lengths: wanted lengths of at least 0",
        ),
        ([USER | {"shape": [4], "data": [1] * 4}], b"", "4 rows in one request; at most 3"),
    ],
)
def test_a_wrong_tensor_is_named(inputs, rest, text):
    with pytest.raises(RequestError, match=text):
        parse(*inputs, rest=rest)


@pytest.mark.parametrize("length", ["x", "-1", "1000"])
def test_a_wrong_length_of_the_json_part_is_refused(length):
    with pytest.raises(RequestError, match="wanted the length of the JSON part, at most 2"):
        tensors.parse_infer(b"{}", length, FIELDS, max_rows=3)


def test_null_nan_and_absent_tensors_are_missing():
    rows, _ = parse(
        USER | {"data": [None, 5]},
        {"name": "price", "datatype": "FP32", "shape": [2, 1], "data": [[1.5], [None]]},
    )
    assert rows.table.to_pylist() == [{"user": None, "price": 1.5}, {"user": 5, "price": None}]
    assert rows.missing == ["item", "viewed", "tags"]
    assert rows.shared.to_pylist() == [{"item": None, "viewed": None, "tags": None}]
    nan = np.array([np.nan, 2.0], np.float64).tobytes()
    rows, _ = parse(
        {
            "name": "price",
            "datatype": "FP64",
            "shape": [2],
            "parameters": {"binary_data_size": 16},
        },
        rest=nan,
    )
    assert rows.table["price"].to_pylist() == [None, 2.0]


def test_ids_from_2_63_on_are_unsigned():
    large = 2**63 + 5
    rows, _ = parse(USER | {"data": [1, large]})
    assert rows.table["user"].type == pa.uint64()
    packed = np.array([1, large], np.uint64).tobytes()
    rows, _ = parse(binary(16, datatype="UINT64"), rest=packed)
    assert rows.table["user"].to_pylist() == [1, large]


def test_an_answer_has_the_wanted_outputs_in_the_wanted_form():
    scores = {"score_a": np.array([0.5, 0.25], np.float32), "score_b": np.zeros(2, np.float32)}
    wanted = {
        "id": "7",
        "outputs": [{"name": "score_b"}, {"name": "score_a", "parameters": {"binary_data": True}}],
    }
    body, headers = tensors.format_infer(wanted, scores, model="m", version="v")
    size = int(headers[tensors.HEADER_LENGTH])
    head = json.loads(body[:size])
    assert (head["id"], head["model_name"], head["model_version"]) == ("7", "m", "v")
    assert [output["name"] for output in head["outputs"]] == ["score_b", "score_a"]
    assert head["outputs"][0]["data"] == [0.0, 0.0]
    assert np.frombuffer(body[size:], "<f4").tolist() == [0.5, 0.25]
    with pytest.raises(RequestError, match=r"outputs\[0\]: the model has no such output; it has"):
        tensors.format_infer({"outputs": [{"name": "x"}]}, scores, model="m", version="v")


def test_two_inputs_with_one_tensor_name_are_refused():
    clash = [*FIELDS, Field("viewed.lengths", "integer", is_list=False)]
    with pytest.raises(InputError, match=r"two of its inputs have a tensor viewed\.lengths"):
        tensors.check_names(clash)
