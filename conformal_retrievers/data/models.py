"""Copies of pydantic models, such as the documents and nodes of a framework."""

from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)
_set = object.__setattr__


def with_fields(model: Model, **others: Any) -> Model:
    """Return a copy of a model, with its class and the fields that are not others.

    It is pydantic's `model_copy(update=others)` in half of the time.

    >>> class Text(BaseModel):
    ...     text: str
    >>> with_fields(Text(text="a"), text="b")
    Text(text='b')
    """
    twin = object.__new__(type(model))
    extra, private = model.__pydantic_extra__, model.__pydantic_private__
    _set(twin, "__dict__", {**model.__dict__, **others})
    _set(twin, "__pydantic_fields_set__", {*model.__pydantic_fields_set__, *others})
    _set(twin, "__pydantic_extra__", extra and {**extra})
    _set(twin, "__pydantic_private__", private and {**private})
    return twin
