"""A real server and real clients: answers, refusals, privacy."""

import gzip
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa
import pytest
import tritonclient.http as triton

import edorec
from tests.serving.http.process import Server
from tests.toy import toy_rows

INPUTS = ["item", "price", "user", "viewed"]


@pytest.fixture(scope="module")
def server(exported):
    options = ["--max-rows", "2000", "--max-body-mb", "0.5", "--log-requests", "--timeout", "3"]
    with Server(exported, *options) as running:
        yield running


@pytest.fixture(scope="module")
def model(exported):
    return edorec.load(exported)


def odd_rows() -> list[dict]:
    """Usual rows, and ones with unseen ids, nulls, empty lists and inputs left out."""
    odd = [
        {"user": 123456, "item": "never", "viewed": [], "price": None},
        {"user": None, "item": None, "viewed": None, "price": 1e30},
        {"user": -5, "item": "777", "viewed": [5, None, 10**15], "price": 3},
        {"item": "i3"},
        {},
    ]
    return odd + toy_rows(40, seed=9).select(INPUTS).to_pylist()


def wanted_scores(model, rows: list[dict]) -> np.ndarray:
    """Of the library, (R, T)."""
    types = {"user": pa.int64(), "item": pa.string(), "viewed": pa.list_(pa.int64())}
    columns = {
        name: pa.array([row.get(name) for row in rows], types.get(name, pa.float64()))
        for name in INPUTS
    }
    return model.predict(pa.table(columns)).to_pandas().to_numpy()


def test_rows_have_the_librarys_scores(server, model):
    rows = odd_rows()
    answer = server.post("/v1/score", {"rows": rows})
    assert answer.status == 200
    content = answer.json()
    assert (content["model"], content["version"]) == ("toy", "toy")
    assert (content["missing"], content["ignored"]) == ([], [])
    found = [[row["score_click"], row["score_buy"]] for row in content["rows"]]
    np.testing.assert_allclose(found, wanted_scores(model, rows), atol=1e-6)


def test_candidates_have_the_scores_of_rows(server, model):
    rows = toy_rows(200, seed=4)
    user = {"user": 7, "viewed": [1, 5, 5]}
    candidates = rows.select(["item", "price"]).to_pydict()
    content = server.post("/v1/candidates", {"user": user, "candidates": candidates}).json()
    joined = [user | row for row in rows.select(["item", "price"]).to_pylist()]
    found = np.stack([content["scores"]["score_click"], content["scores"]["score_buy"]], axis=1)
    np.testing.assert_allclose(found, wanted_scores(model, joined), atol=1e-6)


def test_what_is_missing_or_ignored_is_told(server, model):
    content = server.post("/v1/score", {"rows": [{"user": 7, "itm": "i3"}, {"user": 8}]}).json()
    assert content["missing"] == ["item", "viewed", "price"]
    assert content["ignored"] == ["itm"]
    found = [row["score_click"] for row in content["rows"]]
    wanted = wanted_scores(model, [{"user": 7}, {"user": 8}])[:, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_no_rows_are_no_scores(server):
    assert server.post("/v1/score", {"rows": []}).json()["rows"] == []
    content = server.post("/v1/candidates", {"user": {"user": 1}, "candidates": {"item": []}})
    assert content.json()["scores"] == {"score_click": [], "score_buy": []}


REFUSED = [
    ("/v1/score", b"", 400, "the body is not JSON: fault at line 1, column 1"),
    ("/v1/score", b'{"rows": [{"user": 1}', 400, "the body is not JSON: fault at line 1"),
    ("/v1/score", b'{"rows": [{"price": NaN}]}', 400, "the body is not JSON"),
    ("/v1/score", b'{"rows": [{"item": "\xff"}]}', 400, "the body is not JSON"),
    ("/v1/score", b"[1]", 400, "the body must be a JSON object"),
    ("/v1/score", b"{}", 400, "rows: wanted a list of objects"),
    ("/v1/score", {"rows": [{"user": 1}, 5]}, 400, "rows[1]: wanted an object"),
    (
        "/v1/score",
        {"rows": [{"user": 1}, {"user": "x"}]},
        400,
        "rows[1].user: wanted an integer or null, got a string",
    ),
    (
        "/v1/score",
        {"rows": [{"user": True, "price": "1", "item": 3}]},
        400,
        "rows[0].item: wanted a string or null, got an integer; rows[0].user: wanted an integer "
        "or null, got a bool; rows[0].price: wanted a number or null, got a string",
    ),
    (
        "/v1/score",
        {"rows": [{"viewed": [1]}, {"viewed": [2, 1.5]}]},
        400,
        "rows[1].viewed[1]: wanted an integer or null, got a number with a fraction",
    ),
    (
        "/v1/score",
        {"rows": [{"viewed": 3}]},
        400,
        "rows[0].viewed: wanted a list of integers or null, got an integer",
    ),
    (
        "/v1/score",
        {"rows": [{"user": -1}, {"user": 2**63}]},
        400,
        "rows[0].user and after: integers below 0 and from 2^63 on in one input",
    ),
    (
        "/v1/score",
        {"rows": [{"usr": 1}]},
        400,
        "the request holds none of the model's inputs: item, user, viewed, price",
    ),
    ("/v1/score", {"rows": [{}] * 2001}, 413, "2001 rows in one request; at most 2000 are"),
    ("/v1/candidates", {"user": {}}, 400, "candidates: wanted an object of lists"),
    (
        "/v1/candidates",
        {"user": {}, "candidates": {"item": ["i1"], "price": [1, 2]}},
        400,
        "candidates: lists of different lengths: 1 of item, 2 of price",
    ),
    (
        "/v1/candidates",
        {"user": {"item": "i1"}, "candidates": {"item": ["i1"]}},
        400,
        "item: both in user and in candidates",
    ),
    (
        "/v1/candidates",
        {"user": {"user": "x"}, "candidates": {"item": ["i1", 2]}},
        400,
        "user.user: wanted an integer or null, got a string; candidates.item[1]: wanted a string",
    ),
    ("/v1/candidates", {"user": {}, "candidates": {"a": [1]}}, 400, "holds none of the model's"),
    ("/v1/candidates", {"user": {}, "candidates": {"item": 1}}, 400, "candidates.item: wanted a"),
    ("/v2/models/toy/infer", {"inputs": [{"name": "x"}]}, 400, "inputs[0]: the model has no such"),
    ("/v2/models/other/infer", {}, 404, "this server has model toy, version toy"),
    ("/v2/models/toy/versions/2/infer", {}, 404, "this server has model toy, version toy"),
    ("/v1/nothing", {}, 404, "Not Found"),
    ("/v1/model", {}, 405, "Method Not Allowed"),
]


@pytest.mark.parametrize(("path", "content", "status", "text"), REFUSED)
def test_a_wrong_request_is_refused_and_named(server, path, content, status, text):
    answer = server.post(path, content)
    assert answer.status == status
    assert text in answer.json()["error"]
    assert set(answer.json()) == {"error"}


def test_a_huge_body_is_refused(server):
    with server.client() as client:
        announced = client.request("POST", server.url + "/v1/score", body=b" " * 3_000_000)
        chunked = client.request(
            "POST",
            server.url + "/v1/score",
            body=(b" " * 100_000 for _ in range(30)),
            chunked=True,
        )
    for answer in (announced, chunked):
        assert answer.status == 413
        assert answer.json() == {"error": "the body is larger than 500000 bytes"}
    assert server.post("/v1/score", {"rows": [{"user": 1}]}).status == 200


def test_a_body_that_does_not_arrive_is_given_up(server):
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_a_client_that_leaves_harms_nobody(server):
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as connection:
        connection.sendall(b"POST /v1/score HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
    server.wait_for_line("POST /v1/score 499")
    assert server.post("/v1/score", {"rows": [{"user": 1}]}).status == 200


def test_a_compressed_body_is_refused(server):
    with server.client() as client:
        answer = client.request(
            "POST",
            server.url + "/v1/score",
            body=gzip.compress(b"{}"),
            headers={"content-encoding": "gzip"},
        )
    assert answer.status == 415


def test_many_clients_each_get_their_own_scores(server, model):
    rows = toy_rows(400, seed=11).select(INPUTS).to_pylist()
    parts = [rows[start : start + 1 + start % 7] for start in range(0, 390, 3)]

    def ask(part: list[dict]) -> list[list[float]]:
        answer = server.post("/v1/score", {"rows": part})
        assert answer.status == 200
        return [[row["score_click"], row["score_buy"]] for row in answer.json()["rows"]]

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(ask, parts))
    for part, scores in zip(parts, found, strict=True):
        np.testing.assert_allclose(scores, wanted_scores(model, part), atol=1e-6)


def test_the_documentation_names_the_models_inputs(server):
    content = server.get("/openapi.json").json()
    row = content["components"]["schemas"]["RowsRequest"]["properties"]["rows"]["items"]
    assert set(row["properties"]) == set(INPUTS)
    refs = set(re.findall(r"#/components/schemas/(\w+)", str(content)))
    assert refs <= set(content["components"]["schemas"])
    assert "/v1/candidates" in content["paths"]
    assert server.get("/docs").status == 200
    inputs = server.get("/v1/model").json()["inputs"]
    assert {"name": "viewed", "type": "integer", "list": True} in inputs


def tensor(name: str, values: np.ndarray, datatype: str, *, binary: bool) -> triton.InferInput:
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


@pytest.mark.parametrize("binary", [True, False])
def test_the_triton_client_is_served(server, model, binary):
    rows = [row for row in odd_rows()[5:] if row["viewed"]]
    lists = [row["viewed"] for row in rows]
    users = np.array([row["user"] for row in rows], np.int64)
    items = np.array([row["item"].encode() for row in rows], object)
    prices = np.array([row["price"] for row in rows], np.float64)
    inputs = [
        tensor("user", users.reshape(-1, 1), "INT64", binary=binary),
        tensor("item", items, "BYTES", binary=binary),
        tensor("viewed", np.concatenate(lists).astype(np.int32), "INT32", binary=binary),
        tensor("viewed.lengths", np.array([*map(len, lists)]), "INT64", binary=binary),
        tensor("price", prices, "FP64", binary=binary),
    ]
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("toy")
        assert client.is_model_ready("toy", "toy")
        assert not client.is_model_ready("other")
        assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
        metadata = client.get_model_metadata("toy")
        assert metadata["outputs"][0] == {"name": "score_click", "datatype": "FP32", "shape": [-1]}
        assert {"name": "item", "datatype": "BYTES", "shape": [-1]} in metadata["inputs"]
        result = client.infer("toy", inputs, request_id="abc")
        wanted = wanted_scores(model, rows)
        np.testing.assert_allclose(result.as_numpy("score_click"), wanted[:, 0], atol=1e-6)
        np.testing.assert_allclose(result.as_numpy("score_buy"), wanted[:, 1], atol=1e-6)
        assert result.get_response()["id"] == "abc"
        buy = triton.InferRequestedOutput("score_buy", binary_data=binary)
        result = client.infer("toy", inputs[:1], outputs=[buy])
        wanted = wanted_scores(model, [{"user": row["user"]} for row in rows])
        np.testing.assert_allclose(result.as_numpy("score_buy"), wanted[:, 1], atol=1e-6)
        assert result.as_numpy("score_click") is None
        with pytest.raises(triton.InferenceServerException, match=r"ids of|sum to .* but there"):
            client.infer("toy", [inputs[2], tensor("viewed.lengths", users, "INT64", binary=True)])


def test_raw_ids_are_in_no_log_line_metric_or_error(server):
    number, text = 987654321123, "secret-visitor-44"
    errors = [
        server.post("/v1/score", {"rows": [{"user": text, "item": number}]}),
        server.post("/v1/score", {"rows": [{"viewed": [number, text]}]}),
        server.post("/v1/score", {"rows": [{text: number}]}),
        server.post("/v1/score", f'{{"rows": [{{"user": {number}, "item": "{text}"'.encode()),
        server.post("/v1/candidates", {"user": {"user": text}, "candidates": {text: [number]}}),
        server.post(f"/v1/score/{number}", {}),
        server.post(f"/v2/models/{text}/infer", {}),
        server.post("/v2/models/toy/infer", {"inputs": [{"name": text, "data": [number]}]}),
        server.post("/v2/models/toy/infer", {"inputs": [], "outputs": [{"name": text}]}),
    ]
    assert all(400 <= answer.status < 500 for answer in errors)
    row = {"user": number, "item": text, "viewed": [number], text: number}
    assert server.post(f"/v1/score?user={number}&item={text}", {"rows": [row]}).status == 200
    server.wait_for_line("POST /v1/score 200")
    metrics = server.get("/metrics").data.decode()
    assert 'edorec_requests_total{route="/v1/score",status="200"}' in metrics
    told = [answer.data.decode() for answer in errors] + [metrics, *server.log]
    assert not [line for line in told if str(number) in line or text in line]
