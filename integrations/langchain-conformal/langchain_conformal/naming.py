"""The name of a LangChain model as it tells it, which identifies a scorer and a retriever."""

from __future__ import annotations


def model_name(model: object) -> str | None:
    """Return the name of a model as it tells it, None where it does not."""
    told = (getattr(model, attribute, None) for attribute in ("model_name", "model"))
    return next((name for name in told if isinstance(name, str) and name), None)


def told_name(model: object, remedy: str) -> str:
    """Return `model_name`; raise ValueError with the scorer to give instead where there is none."""
    name = model_name(model)
    if name is not None:
        return name
    raise ValueError(
        f"{type(model).__name__} does not tell its model's name (model_name or model), which "
        f"identifies the scorer: give scorer={remedy} instead of the model"
    )
