"""Refusals of the administration: each becomes a problem document or a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ValidationError

from ...policies.settings import fault_text, one_line

#: The default code of each status.
_CODES = {
    400: "bad-request",
    401: "log-in-first",
    403: "not-allowed",
    404: "not-found",
    405: "method-not-allowed",
    409: "conflict",
    415: "unsupported-media-type",
    422: "invalid-value",
    428: "condition-required",
    429: "too-many-tries",
    500: "server-fault",
    503: "not-available-now",
}


class Problem(Exception):
    """A refusal by RFC 9457.

    `errors` names each invalid field: dicts with field, message and, where they exist, minimum,
    maximum, unit and allowed.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        code: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.code = code or _CODES[status]
        self.errors = [dict(error) for error in errors]
        self.headers = tuple(headers)

    @property
    def title(self) -> str:
        """The phrase of its status, for the head of a page."""
        return HTTPStatus(self.status).phrase


def wrong(name: str, message: str, **bounds: Any) -> Problem:
    """One invalid field with its message and bounds."""
    errors = [{"field": name, "message": message, **bounds}]
    return Problem(422, f"{name}: {message}", code="invalid-value", errors=errors)


def invalid(
    error: ValidationError, model: type[BaseModel], status: int = 422, where: str = ""
) -> Problem:
    """The faults that pydantic found, each with the bounds of its field."""
    properties = model.model_json_schema().get("properties", {})
    errors = []
    for fault in error.errors(include_url=False, include_input=False):
        words = [str(part) for part in fault["loc"]]
        form = one_line(properties.get(words[0], {}).get("description")) if words else ""
        message = fault_text(fault, form)
        if fault["type"] != "value_error":
            # Sentences of our own may begin with the name of a field.
            message = message[:1].upper() + message[1:]
        found: dict[str, Any] = {"field": ".".join(words), "message": message}
        if where:
            found["in"] = where
        if words:
            found.update(_bounds(properties.get(words[0], {})))
        errors.append(found)
    first = errors[0]
    detail = f"{first['field']}: {first['message']}" if first["field"] else str(first["message"])
    return Problem(status, detail, code="invalid-value", errors=errors)


def _bounds(schema: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "minimum": "minimum",
        "exclusiveMinimum": "above",
        "maximum": "maximum",
        "exclusiveMaximum": "below",
        "minLength": "shortest",
        "maxLength": "longest",
        "unit": "unit",
        "enum": "allowed",
    }
    found = {names[key]: value for key, value in schema.items() if key in names}
    for option in schema.get("anyOf", ()):
        found |= _bounds(option)
    return found
