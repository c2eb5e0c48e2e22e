"""The API's description as a page for people, which loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

_HTML = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tensorway</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto }}
dt {{ font-family: monospace; margin-top: .5rem }} code {{ font-size: 1.1em }}
</style>
<h1>Tensorway, HTTP API</h1>
<p>For programs: <a href="openapi.json">openapi.json</a>.</p>
{body}
</html>
"""


def page(openapi: dict[str, Any]) -> str:
    """An OpenAPI document as HTML."""
    operations = [
        _operation(path, method, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    shapes = [_shape(*item) for item in openapi["components"]["schemas"].items()]
    return _HTML.format(body="\n".join([*operations, "<h2>Shapes</h2>", *shapes]))


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    title = f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
    body = operation.get("requestBody")
    asked = f"<p>Body: {_media(body)}.</p>" if body else ""
    answers = [
        f"<dt>{status}</dt><dd>{escape(answer['description'])} {_media(answer)}</dd>"
        for status, answer in operation["responses"].items()
    ]
    return f"{title}<p>{escape(operation['summary'])}</p>{asked}<dl>{''.join(answers)}</dl>"


def _media(described: dict[str, Any]) -> str:
    return _type(described["content"]["application/json"]["schema"])


def _shape(name: str, schema: dict[str, Any]) -> str:
    fields = "".join(
        f"<dt>{field}: {_type(value)}{'' if field in schema.get('required', ()) else ', optional'}"
        f"</dt><dd>{escape(value.get('description', ''))}</dd>"
        for field, value in schema["properties"].items()
    )
    about = escape(schema.get("description", ""))
    return f'<h3 id="{name}">{name}</h3><p>{about}</p><dl>{fields}</dl>'


def _type(schema: dict[str, Any]) -> str:
    return " or ".join(_types(schema))


def _types(schema: dict[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield f'<a href="#{name}">{name}</a>'
    elif "anyOf" in schema:
        for one in schema["anyOf"]:
            yield from _types(one)
    elif "enum" in schema:
        yield from (f'"{escape(str(value))}"' for value in schema["enum"])
    elif schema.get("type") == "array":
        yield f"[{_type(schema['items'])}]"
    else:
        yield schema.get("type", "anything")
