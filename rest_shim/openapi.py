"""The API's description: OpenAPI at /openapi.json, and a page for people at /docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tensorway import __version__

from .answers import Error
from .operations import Operation
from .page import page
from .render import small

_REF = "#/components/schemas/{name}"
# A token is only needed where the shim or the router was given some.
_SECURITY: list[dict[str, list[str]]] = [{}, {"token": []}]
_ERRORS = {
    "400": "A value that the caller must change; `param` names it.",
    "401": "No bearer token, or a wrong one.",
    "404": "No such model.",
    "413": "The body, or the answer to it, is larger than is allowed.",
    "429": "Too much work at once; come back after `Retry-After` seconds.",
    "500": "Our mistake; the log has more under the request's id.",
    "501": "The server behind does not have that operation.",
    "503": "Nobody can answer now.",
    "504": "No answer within the deadline.",
}


class Description:
    """The handlers; what they show is made once."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._openapi = describe(operations)
        self._page = page(self._openapi)

    async def json(self, _request: Request) -> Response:
        """OpenAPI, for programs."""
        return small(self._openapi)

    async def html(self, _request: Request) -> Response:
        """The same for people; it needs nothing from elsewhere."""
        return HTMLResponse(self._page)


def describe(operations: Sequence[Operation]) -> dict[str, Any]:
    """The operations as an OpenAPI 3.1 document."""
    types = [kind for o in operations for kind in (o.body, o.answer) if kind is not None]
    _, schemas = msgspec.json.schema_components([*types, Error], ref_template=_REF)
    paths = {o.path.replace(":path", ""): {o.method.lower(): _operation(o)} for o in operations}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tensorway", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": _SECURITY,
    }


def _operation(operation: Operation) -> dict[str, Any]:
    answers = {"200": _content("The answer.", operation.answer)}
    errors = {status: _content(text, Error) for status, text in _ERRORS.items()}
    described: dict[str, Any] = {"summary": operation.summary}
    described["responses"] = {**answers, **errors}
    if operation.body:
        described["requestBody"] = {**_content("", operation.body), "required": True}
    if "{model" in operation.path:
        name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        described["parameters"] = [name]
    return described


def _content(description: str, kind: type) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=kind.__name__)}
    return {"description": description, "content": {"application/json": {"schema": schema}}}
