"""Records: what a stream holds."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import Unpack

from chancy.errors import ConfigurationError
from chancy.text import shown

_SCALARS: tuple[object, ...] = (int, float, bool, str, bytes)
#: What is told of a validation error: a record may have thousands of wrong parts.
_MAX_REASONS = 3


class Record(BaseModel):
    """A base for records. Any other pydantic model will do as well.

    Bytes are written as base64 and infinite numbers as text, so that JSON gives back what it got.

    ``class Tick(Record, primitive=True)`` has each attribute as a field of the entry, without a
    codec: small, since Redis keeps equal names once, and read by any program. All attributes must
    then be ``int``, ``float``, ``bool``, ``str`` or ``bytes``.
    """

    model_config = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings"
    )

    #: Whether attributes are fields of the entry.
    primitive_record: ClassVar[bool] = False

    def __init_subclass__(cls, *, primitive: bool = False, **kwargs: Unpack[ConfigDict]) -> None:
        """Define a record.

        :param primitive: each attribute is a field of the entry; subclasses inherit it.
        :raises ConfigurationError: a primitive record with an attribute that is no scalar.
        """
        super().__init_subclass__(**kwargs)
        if primitive:
            cls.primitive_record = True

    @classmethod
    def __pydantic_init_subclass__(cls, primitive: bool = False, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.primitive_record:
            check_scalars(cls)


def is_primitive(model: type[BaseModel]) -> bool:
    """Whether the attributes of these records are fields of the entry."""
    return issubclass(model, Record) and model.primitive_record


def check_scalars(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        problem = _no_scalar(field)
        if problem:
            raise ConfigurationError(
                f"{model.__qualname__}.{name} {problem}: the attributes of a primitive record are "
                "int, float, bool, str or bytes, under their own names; leave out primitive=True "
                "for others"
            )


def _no_scalar(field: FieldInfo) -> str | None:
    kind = field.annotation
    if kind not in _SCALARS:
        named = shown(kind) if get_args(kind) else getattr(kind, "__qualname__", shown(kind))
        return f"is of the type {named}"
    if field.alias is not None or field.validation_alias is not None:
        return f"has the alias {shown(field.alias or field.validation_alias)}"
    if field.exclude:
        return "is excluded, so it would not be written"
    return None


def reasons(error: ValidationError) -> str:
    """The wrong fields, each with what is wrong; the values themselves may be secret."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    told = [
        f"{'.'.join(map(str, each['loc'])) or 'the record'}: {each['msg']}"
        for each in found[:_MAX_REASONS]
    ]
    if len(found) > _MAX_REASONS:
        told.append(f"and {len(found) - _MAX_REASONS} more")
    return "; ".join(told)
