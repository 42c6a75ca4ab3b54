"""Requests and answers of the Open Inference Protocol (KServe v2) with its binary extension.

A scalar feature is a tensor of shape [rows] or [rows, 1]. A list feature is two tensors, as in
torchrec's KeyedJaggedTensor: its ids one after the other, and ``NAME.lengths``. A tensor that is
left out is missing in every row; so are null in JSON data and NaN in a float tensor.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from edorec.errors import InputError
from edorec.serving.http.errors import RequestError, refuse
from edorec.serving.http.fields import Field, to_column
from edorec.serving.http.rows import Rows, assemble, check_num_rows, parse_json

HEADER_LENGTH = "Inference-Header-Content-Length"
LENGTHS = ".lengths"
DATATYPES = {"integer": "INT64", "string": "BYTES", "number": "FP32"}
_INTEGERS = tuple(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))
_ALLOWED = {
    "integer": _INTEGERS,
    "string": ("BYTES",),
    "number": ("FP32", "FP64", *_INTEGERS),
}
_NUMPY = {"FP32": "<f4", "FP64": "<f8"} | {
    name: f"<{'u' if name[0] == 'U' else 'i'}{int(name.split('INT')[1]) // 8}" for name in _INTEGERS
}


def input_tensors(fields: Sequence[Field]) -> list[dict[str, Any]]:
    """Inputs as the model's metadata list them."""
    tensors = []
    for field in fields:
        tensors.append({"name": field.name, "datatype": DATATYPES[field.kind], "shape": [-1]})
        if field.is_list:
            tensors.append({"name": field.name + LENGTHS, "datatype": "INT64", "shape": [-1]})
    return tensors


def check_names(fields: Sequence[Field]) -> None:
    """Refuses inputs that would give two tensors of one name.

    Raises:
        InputError: naming the tensor.
    """
    counts = Counter(tensor["name"] for tensor in input_tensors(fields))
    for name, count in counts.items():
        if count > 1:
            raise InputError(f"the model cannot be served: two of its inputs have a tensor {name}")


def parse_infer(
    body: bytes, header_length: str | None, fields: Sequence[Field], *, max_rows: int
) -> tuple[Rows, dict[str, Any]]:
    """Rows of an inference request, and its JSON part.

    Raises:
        RequestError: naming what is wrong with the request.
    """
    json_size = _json_size(header_length, len(body))
    request = parse_json(body[:json_size])
    tensors = _read_tensors(request, memoryview(body)[json_size:], fields)
    arrays, problems = {}, []
    for field in fields:
        if field.name in tensors or field.name + LENGTHS in tensors:
            try:
                arrays[field.name] = _column(field, tensors)
            except ValueError as error:
                problems.append(str(error))
    refuse(problems)
    rows = {name: len(array) for name, array in arrays.items()}
    if len(set(rows.values())) > 1:
        found = ", ".join(f"{count} of {name}" for name, count in rows.items())
        raise RequestError(400, f"inputs: different numbers of rows: {found}")
    num_rows = next(iter(rows.values()), 0)
    if not rows:
        raise RequestError(400, f"inputs: wanted at least one of {_names(fields)}")
    check_num_rows(num_rows, max_rows)
    return assemble(arrays, fields, num_rows), request


def format_infer(
    request: Mapping[str, Any],
    scores: Mapping[str, npt.NDArray[np.float32]],
    *,
    model: str,
    version: str,
) -> tuple[bytes, dict[str, str]]:
    """Body and headers of an answer.

    Args:
        request: JSON part of the request; says which outputs are wanted and in which form.
        scores: by output name, float32 of shape (rows,).
        model: name of the model.
        version: its version.

    Raises:
        RequestError: if the request wants an output that there is not.
    """
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": []}
    if isinstance(request.get("id"), str):
        answer["id"] = request["id"]
    buffers = []
    for name, is_binary in _wanted(request, list(scores)):
        values = np.ascontiguousarray(scores[name], "<f4")
        output: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": [len(values)]}
        if is_binary:
            output["parameters"] = {"binary_data_size": values.nbytes}
            buffers.append(values.tobytes())
        else:
            output["data"] = values
        answer["outputs"].append(output)
    header = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return header, {"content-type": "application/json"}
    return b"".join([header, *buffers]), {
        "content-type": "application/octet-stream",
        HEADER_LENGTH: str(len(header)),
    }


def _wanted(request: Mapping[str, Any], names: list[str]) -> list[tuple[str, bool]]:
    """Names of the wanted outputs, and whether each is to be binary."""
    default = _parameters(request).get("binary_data_output") is True
    outputs = request.get("outputs") or [{"name": name} for name in names]
    if not isinstance(outputs, list):
        raise RequestError(400, "outputs: wanted a list of objects")
    wanted = []
    for index, output in enumerate(outputs):
        if not isinstance(output, dict) or output.get("name") not in names:
            raise RequestError(
                400, f"outputs[{index}]: the model has no such output; it has {', '.join(names)}"
            )
        is_binary = _parameters(output).get("binary_data", default) is True
        wanted.append((output["name"], is_binary))
    return wanted


def _parameters(content: Mapping[str, Any]) -> dict[str, Any]:
    parameters = content.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise RequestError(400, "parameters: wanted an object")
    return parameters


def _json_size(header_length: str | None, body_size: int) -> int:
    if header_length is None:
        return body_size
    if not header_length.isdecimal() or int(header_length) > body_size:
        raise RequestError(
            400, f"{HEADER_LENGTH}: wanted the length of the JSON part, at most {body_size}"
        )
    return int(header_length)


def _names(fields: Sequence[Field]) -> str:
    return ", ".join(tensor["name"] for tensor in input_tensors(fields))


def _read_tensors(
    request: Mapping[str, Any], buffer: memoryview, fields: Sequence[Field]
) -> dict[str, Any]:
    """Values by tensor name: a list, or a numpy array of a binary tensor of numbers."""
    kinds = {field.name: field.kind for field in fields}
    kinds |= {field.name + LENGTHS: "integer" for field in fields if field.is_list}
    inputs = request.get("inputs")
    if not isinstance(inputs, list):
        raise RequestError(400, "inputs: wanted a list of tensors")
    tensors: dict[str, Any] = {}
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, dict) or tensor.get("name") not in kinds:
            raise RequestError(
                400, f"inputs[{index}]: the model has no such input; it has {_names(fields)}"
            )
        name = tensor["name"]
        if name in tensors:
            raise RequestError(400, f"inputs[{index}]: {name} comes twice")
        try:
            _check_datatype(tensor, _ALLOWED[kinds[name]])
            size = _parameters(tensor).get("binary_data_size")
            if size is None:
                tensors[name] = _json_data(tensor)
            else:
                tensors[name], buffer = _binary_data(tensor, size, buffer)
        except ValueError as error:
            raise RequestError(400, f"{name}: {error}") from None
    if len(buffer):
        raise RequestError(400, f"{len(buffer)} bytes follow the last binary tensor")
    return tensors


def _check_datatype(tensor: Mapping[str, Any], allowed: Sequence[str]) -> None:
    if tensor.get("datatype") not in allowed:
        raise ValueError(f"datatype must be {' or '.join(allowed)}")


def _num_values(tensor: Mapping[str, Any]) -> int:
    """Length of a tensor of shape [n] or [n, 1]."""
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or not all(type(size) is int and size >= 0 for size in shape)
        or not (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))
    ):
        raise ValueError("shape must be [n] or [n, 1]")
    return int(shape[0])


def _json_data(tensor: Mapping[str, Any]) -> list[Any]:
    data = tensor.get("data")
    if not isinstance(data, list):
        raise ValueError("data must be a list, or parameters.binary_data_size be given")
    if data and all(type(item) is list for item in data):
        data = list(itertools.chain.from_iterable(data))
    if len(data) != _num_values(tensor):
        raise ValueError(f"{len(data)} values, which is not the shape")
    return data


def _binary_data(
    tensor: Mapping[str, Any], size: object, buffer: memoryview
) -> tuple[Any, memoryview]:
    """Values of a binary tensor, and the bytes after it."""
    if type(size) is not int or not 0 <= size <= len(buffer):
        raise ValueError(f"binary_data_size must be a number of bytes; {len(buffer)} are left")
    data, rest = buffer[:size], buffer[size:]
    num_values = _num_values(tensor)
    if tensor["datatype"] == "BYTES":
        return _texts(data, num_values), rest
    dtype = np.dtype(_NUMPY[tensor["datatype"]])
    if size != num_values * dtype.itemsize:
        raise ValueError(f"{size} bytes of binary data, which is not the shape")
    return np.frombuffer(data, dtype), rest


def _texts(data: memoryview, num_values: int) -> list[str]:
    """Strings, each after its length in 4 bytes, little endian."""
    texts, start = [], 0
    while start < len(data):
        end = start + 4 + int.from_bytes(data[start : start + 4], "little")
        if end > len(data):
            raise ValueError("the binary data end within a string")
        try:
            texts.append(str(data[start + 4 : end], "utf-8"))
        except UnicodeDecodeError:
            raise ValueError(f"string {len(texts)} is not UTF-8") from None
        start = end
    if len(texts) != num_values:
        raise ValueError(f"{len(texts)} strings, which is not the shape")
    return texts


def _column(field: Field, tensors: Mapping[str, Any]) -> pa.Array:
    """The column of a feature.

    Raises:
        ValueError: naming the tensor and what is wrong with it.
    """
    if not field.is_list:
        return _flat(field, tensors[field.name], field.name)
    if field.name not in tensors or field.name + LENGTHS not in tensors:
        raise ValueError(f"{field.name}: a list takes both {field.name} and {field.name}{LENGTHS}")
    items = _flat(field, tensors[field.name], field.name)
    lengths = _lengths(tensors[field.name + LENGTHS], field.name)
    if lengths.sum() != len(items):
        raise ValueError(
            f"{field.name}{LENGTHS}: they sum to {lengths.sum()}, but there are {len(items)} ids"
        )
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), items)


def _lengths(values: Any, name: str) -> npt.NDArray[np.int64]:
    if not all(type(value) is int for value in values if not isinstance(values, np.ndarray)):
        raise ValueError(f"{name}{LENGTHS}: wanted integers")
    lengths = np.asarray(values)
    if len(lengths) and not (lengths.min() >= 0 and lengths.max() <= np.iinfo(np.int32).max):
        raise ValueError(f"{name}{LENGTHS}: wanted lengths of at least 0")
    return lengths.astype(np.int64)


def _flat(field: Field, values: Any, name: str) -> pa.Array:
    """Values of a tensor, checked."""
    scalar = Field(field.name, field.kind, is_list=False)
    if not isinstance(values, np.ndarray):
        return to_column(scalar, values, where=lambda row: f"{name}[{row}]")
    if field.kind == "number":
        return pa.array(values.astype(np.float64), from_pandas=True)
    is_large = values.dtype == np.uint64 and len(values) and values.max() > np.iinfo(np.int64).max
    return pa.array(values if is_large else values.astype(np.int64))
