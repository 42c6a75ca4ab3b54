"""Routes of the server."""

from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import edorec
from edorec.serving.http import openapi, tensors
from edorec.serving.http.batcher import Batcher, Scores
from edorec.serving.http.edge import ServerState, read_body
from edorec.serving.http.errors import RequestError
from edorec.serving.http.metrics import Metrics
from edorec.serving.http.rows import Rows, parse_candidates, parse_rows
from edorec.serving.http.settings import ServeSettings
from edorec.serving.http.versions import Version, Versions


@dataclass(frozen=True)
class Service:
    """The parts behind the routes."""

    settings: ServeSettings
    versions: Versions
    batcher: Batcher
    metrics: Metrics
    state: ServerState

    async def body(self, request: Request) -> bytes:
        """The request's body, unless the queue is full already."""
        self.batcher.check_room(1)
        return await read_body(
            request,
            max_bytes=self.settings.max_body_bytes,
            timeout_seconds=self.settings.timeout_seconds,
        )

    async def score(self, version: Version, rows: Rows) -> Scores:
        """Scores of a request's rows."""
        for name in rows.missing:
            self.metrics.missing_inputs.labels(name).inc()
        if rows.ignored:
            self.metrics.ignored_names.inc(len(rows.ignored))
        return await self.batcher.score(
            version, rows, timeout_seconds=self.settings.timeout_seconds
        )

    def version(self, name: str, version: str | None) -> Version:
        """The serving version, if the client names this model, and this version or none.

        Raises:
            RequestError: status 404.
        """
        current = self.versions.current
        if name != self.settings.name or version not in (None, current.name):
            raise RequestError(
                404, f"this server has model {self.settings.name}, version {current.name}"
            )
        return current


def build_app(service: Service) -> FastAPI:
    """The application."""
    app = FastAPI(
        title=f"edorec: {service.settings.name}",
        version=edorec.__version__,
        description=openapi.DESCRIPTION,
    )
    _add_scoring(app, service)
    _add_inference_protocol(app, service)
    _add_operation(app, service)
    for kind, handler in (
        (RequestError, _refused),
        (HTTPException, _not_routed),
        (Exception, _failed),
    ):
        app.add_exception_handler(kind, handler)
    described = openapi.routes_schema(app)
    app.openapi = lambda: openapi.schema(described, service.versions.current)  # type: ignore[method-assign]
    return app


def _add_scoring(app: FastAPI, service: Service) -> None:
    """The JSON endpoints."""
    settings = service.settings

    @app.get("/v1/model", tags=["score"], summary="Inputs and outputs", responses=openapi.MODEL)
    async def model() -> Response:
        version = service.versions.current
        return _json(
            _about(settings.name, version)
            | {"inputs": _inputs(version), "outputs": version.outputs}
        )

    @app.post("/v1/score", **openapi.SCORE)
    async def score(request: Request) -> Response:
        version = service.versions.current
        rows = parse_rows(await service.body(request), version.fields, max_rows=settings.max_rows)
        scores = await service.score(version, rows)
        values = zip(*(scores[name] for name in version.outputs), strict=True)
        scored = [dict(zip(version.outputs, row, strict=True)) for row in values]
        return _json(_about(settings.name, version) | _told(rows) | {"rows": scored})

    @app.post("/v1/candidates", **openapi.CANDIDATES)
    async def candidates(request: Request) -> Response:
        version = service.versions.current
        rows = parse_candidates(
            await service.body(request), version.fields, max_rows=settings.max_rows
        )
        scores = await service.score(version, rows)
        return _json(_about(settings.name, version) | _told(rows) | {"scores": scores})


def _add_inference_protocol(app: FastAPI, service: Service) -> None:
    """The Open Inference Protocol (KServe v2)."""
    name = service.settings.name
    protocol: dict[str, Any] = {"tags": ["Open Inference Protocol"]}

    @app.get("/v2", summary="Server", **protocol)
    async def server() -> Response:
        return _json(
            {
                "name": "edorec",
                "version": edorec.__version__,
                "extensions": ["binary_tensor_data"],
            }
        )

    @app.get("/v2/health/live", summary="Whether the server runs", **protocol)
    async def live() -> Response:
        return _json({"live": True})

    @app.get("/v2/health/ready", summary="Whether it takes requests", **protocol)
    async def ready() -> Response:
        is_ready = service.versions.is_ready and not service.state.is_draining
        return _json({"ready": is_ready}, status=200 if is_ready else 503)

    async def model_ready(model: str, version: str | None = None) -> Response:
        service.version(model, version)
        return await ready()

    async def metadata(model: str, version: str | None = None) -> Response:
        current = service.version(model, version)
        return _json(
            {
                "name": name,
                "versions": [current.name],
                "platform": "edorec",
                "inputs": tensors.input_tensors(current.fields),
                "outputs": [
                    {"name": output, "datatype": "FP32", "shape": [-1]}
                    for output in current.outputs
                ],
            }
        )

    async def infer(request: Request, model: str, version: str | None = None) -> Response:
        current = service.version(model, version)
        rows, wanted = tensors.parse_infer(
            await service.body(request),
            request.headers.get(tensors.HEADER_LENGTH),
            current.fields,
            max_rows=service.settings.max_rows,
        )
        scores = await service.score(current, rows)
        body, headers = tensors.format_infer(wanted, scores, model=name, version=current.name)
        return Response(body, headers=headers)

    for prefix in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        app.get(f"{prefix}/ready", summary="Whether it takes requests", **protocol)(model_ready)
        app.get(prefix, summary="Inputs and outputs", **protocol)(metadata)
        app.post(f"{prefix}/infer", **openapi.INFER)(infer)


def _add_operation(app: FastAPI, service: Service) -> None:
    @app.get("/metrics", tags=["operation"], summary="Prometheus metrics")
    async def metrics() -> Response:
        body = generate_latest(service.metrics.registry)
        return Response(body, headers={"content-type": CONTENT_TYPE_LATEST})


def _about(name: str, version: Version) -> dict[str, Any]:
    return {"model": name, "version": version.name}


def _told(rows: Rows) -> dict[str, Any]:
    """What the answer says about the request."""
    return {"missing": rows.missing, "ignored": rows.ignored}


def _inputs(version: Version) -> list[dict[str, Any]]:
    return [
        {"name": field.name, "type": field.kind, "list": field.is_list} for field in version.fields
    ]


def _json(content: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, headers=headers, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return _json({"error": error.text}, status=error.status, headers=headers)


async def _not_routed(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(
        {"error": error.detail}, status=error.status_code, headers=dict(error.headers or {})
    )


async def _failed(_: Request, error: Exception) -> Response:
    return _json({"error": f"internal error ({type(error).__name__}), see the log"}, status=500)
