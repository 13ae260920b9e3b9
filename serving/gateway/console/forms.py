"""Reads forms that browsers send."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import parse_qsl

from starlette.requests import Request

from serving.errors import InvalidArgument
from serving.gateway.api.request_io import read_body
from serving.http_headers import strip_parameters

ANTI_FORGERY_FIELD = "anti_forgery_token"
_FORM_TYPE = "application/x-www-form-urlencoded"
_MAX_FIELDS = 1000


class Form:
    """The fields of a form, as text; a field that was not sent is ""."""

    def __init__(self, fields: Mapping[str, Sequence[str]]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> str:
        return self._fields.get(name, ("",))[-1].strip()

    def get_raw(self, name: str) -> str:
        """The text with the white space around it."""
        return self._fields.get(name, ("",))[-1]

    def get_list(self, name: str) -> Sequence[str]:
        return [value.strip() for value in self._fields.get(name, ())]

    def items(self) -> Iterator[tuple[str, str]]:
        """The names and last values of all fields that were sent."""
        return ((name, values[-1]) for name, values in self._fields.items())

    def replace(self, **fields: str) -> Form:
        """The form with other values of some fields."""
        return Form({**self._fields, **{name: (value,) for name, value in fields.items()}})

    def is_checked(self, name: str) -> bool:
        return bool(self[name])


EMPTY_FORM = Form({})


async def read_form(request: Request) -> Form:
    """Raises InvalidArgument, BodyTooLarge."""
    if strip_parameters(request.headers.get("content-type", "")) != _FORM_TYPE:
        raise InvalidArgument(f"A form must be sent as {_FORM_TYPE}.")
    body = await read_body(request)
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MAX_FIELDS)
    except ValueError as error:  # not UTF-8, or too many fields
        raise InvalidArgument(f"The form cannot be read: {error}.") from error
    fields: dict[str, list[str]] = {}
    for name, value in pairs:
        # Browsers send line breaks as CR LF.
        fields.setdefault(name, []).append(value.replace("\r\n", "\n"))
    return Form(fields)
