"""Records: the values that a stream stores."""

from __future__ import annotations

from typing import Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo
from typing_extensions import Unpack

from chancy.errors import ConfigurationError
from chancy.text import shown

_SCALARS: tuple[object, ...] = (int, float, bool, str, bytes)


class Record(BaseModel):
    """Base class for records. Any other pydantic model works as well.

    Bytes are written as base64 and infinite numbers as strings, so that JSON round-trips them.

    ``class Tick(Record, primitive=True)`` stores each attribute as a field of the entry, without a
    codec. This is compact, because Redis stores equal names once, and any program can read it. All
    attributes must then be ``int``, ``float``, ``bool``, ``str`` or ``bytes``.
    """

    model_config = ConfigDict(
        ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings"
    )

    #: Whether attributes are fields of the entry.
    primitive_record: ClassVar[bool] = False

    def __init_subclass__(cls, *, primitive: bool = False, **kwargs: Unpack[ConfigDict]) -> None:
        """Define a record.

        :param primitive: store each attribute as a field of the entry; subclasses inherit it.
        :raises ConfigurationError: an attribute of a primitive record is not a scalar.
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
    """Return whether the attributes of these records are fields of the entry."""
    return issubclass(model, Record) and model.primitive_record


def check_scalars(model: type[BaseModel]) -> None:
    for name, field in model.model_fields.items():
        problem = _no_scalar(field)
        if problem:
            raise ConfigurationError(
                f"{model.__qualname__}.{name} {problem}: the attributes of a primitive record must "
                "be int, float, bool, str or bytes without an alias; remove primitive=True to use "
                "other types"
            )


def _no_scalar(field: FieldInfo) -> str | None:
    kind = field.annotation
    if kind not in _SCALARS:
        named = shown(kind) if get_args(kind) else getattr(kind, "__qualname__", shown(kind))
        return f"has the type {named}"
    if field.alias is not None or field.validation_alias is not None:
        return f"has the alias {shown(field.alias or field.validation_alias)}"
    if field.exclude:
        return "is excluded, so it would not be written"
    return None
