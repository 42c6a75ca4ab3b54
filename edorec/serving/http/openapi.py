"""Documentation of the routes: an OpenAPI schema that names the inputs of the serving model."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from edorec.serving.http.fields import Field
from edorec.serving.http.versions import Version

DESCRIPTION = """Scores rows with an edorec model.

An input that a request leaves out, or that is null, is missing, as in training. Errors are
`{"error": "..."}`: 400 for a request that is wrong, 404 for another model or version, 408 for a
body that does not arrive, 413 for too large a body or too many rows, 415 for a compressed body, 429
when the queue is full, 503 while the model is loaded or when scores would come too late. After 429
and 503 try again later.
"""


def _body(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _answers(name: str) -> dict[int | str, dict[str, Any]]:
    def content(schema: str) -> dict[str, Any]:
        return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}

    refusals = {
        400: "The request is wrong",
        413: "Too large",
        429: "The queue is full",
        503: "Loading, or too late",
    }
    return {
        200: {"description": "Scores", "content": content(name)},
        **{s: {"description": t, "content": content("Error")} for s, t in refusals.items()},
    }


MODEL: dict[int | str, dict[str, Any]] = {200: {"description": "Inputs and outputs"}}
SCORE: dict[str, Any] = {
    "tags": ["score"],
    "summary": "Score rows",
    "openapi_extra": _body("RowsRequest"),
    "responses": _answers("RowsAnswer"),
}
CANDIDATES: dict[str, Any] = {
    "tags": ["score"],
    "summary": "Score candidates for one user",
    "description": "The user's inputs once, and a list with a value for each candidate.",
    "openapi_extra": _body("CandidatesRequest"),
    "responses": _answers("CandidatesAnswer"),
}
INFER: dict[str, Any] = {
    "tags": ["Open Inference Protocol"],
    "summary": "Score tensors",
    "openapi_extra": _body("InferRequest"),
    "responses": _answers("InferAnswer"),
}


def routes_schema(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI schema of the routes; takes a while, and holds for every model."""
    content = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    # FastAPI describes checks of its own, which are not made here.
    content.pop("components", None)
    for path in content["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    return content


def schema(routes: dict[str, Any], version: Version) -> dict[str, Any]:
    """The whole schema while ``version`` serves."""
    return routes | {"components": {"schemas": _schemas(version)}}


def _schemas(version: Version) -> dict[str, Any]:
    inputs = {field.name: _value(field) for field in version.fields}
    lists = {name: {"type": "array", "items": value} for name, value in inputs.items()}
    number = {"type": "number", "format": "float"}
    about = {
        "model": {"type": "string"},
        "version": {"type": "string"},
        "missing": _texts("Inputs that the request left out; they count as missing"),
        "ignored": _texts("Names in the request that are no input"),
    }
    scores = dict.fromkeys(version.outputs, number)
    score_lists = {name: {"type": "array", "items": number} for name in version.outputs}
    tensor = _object(
        {
            "name": {"type": "string"},
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array", "items": {}},
        }
    )
    tensors = {"type": "array", "items": tensor}
    return {
        "Error": _object({"error": {"type": "string"}}),
        "RowsRequest": _object({"rows": {"type": "array", "items": _object(inputs)}}),
        "RowsAnswer": _object(
            about | {"rows": {"type": "array", "items": _object(scores)}},
        ),
        "CandidatesRequest": _object({"user": _object(inputs), "candidates": _object(lists)}),
        "CandidatesAnswer": _object(about | {"scores": _object(score_lists)}),
        "InferRequest": _object({"id": {"type": "string"}, "inputs": tensors}),
        "InferAnswer": _object(
            {
                "id": {"type": "string"},
                "model_name": {"type": "string"},
                "model_version": {"type": "string"},
                "outputs": tensors,
            }
        ),
    }


def _value(field: Field) -> dict[str, Any]:
    item = {"type": [field.kind, "null"]}
    return {"type": ["array", "null"], "items": item} if field.is_list else item


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}
