"""The file of a factuality classifier: JSON, and an npz file of its coefficients beside it.

No pickle: what is read is numbers and texts, and each is checked.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conformal_retrievers.data.files import write_whole

FORMAT = "conformal-retrievers/factuality-classifier"
VERSION = 1


def write_classifier(path: str | Path, known: Mapping[str, Any], weights: bytes) -> None:
    """Write what is known of a classifier, and the npz content `weights` under a name of its own.

    Raises OSError, naming the path, where one cannot be written.
    """
    target, digest = Path(path), hashlib.sha256(weights).hexdigest()
    # A backslash is a folder's on Windows: a name with one is never read.
    beside = f"{target.stem}-{digest[:12]}.npz".replace("\\", "_")
    fields: dict[str, Any] = {"format": FORMAT, "version": VERSION, **known}
    fields |= {"weights": beside, "weights_sha256": digest}
    fields["sha256"] = _checksum(fields)
    write_whole(target.with_name(beside), weights, what="classifier's coefficients")
    text = json.dumps(fields, indent=2, ensure_ascii=False) + "\n"
    write_whole(target, text.encode("utf-8"), what="classifier")


def read_classifier(
    path: str | Path,
) -> tuple[dict[str, Any], NDArray[np.float64], float]:
    """Return the fields, the coefficients and the intercept of a file that was written so.

    Raises ValueError, naming path and remedy, where a file is broken, changed or of another
    version; FileNotFoundError where one is missing.
    """
    fields = _read_fields(path)
    name = fields["weights"]
    try:
        weights = Path(path).with_name(name).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{path}: its coefficients, {name}, are not beside it; that file must move along with "
            "it, so put it there, or fit again"
        ) from None
    if hashlib.sha256(weights).hexdigest() != fields["weights_sha256"]:
        raise ValueError(
            f"{path}: its coefficients in {name} were changed after they were written; take the "
            "original file, or fit again"
        )
    coefficients, intercept = _read_weights(path, name, weights)
    if not (np.isfinite(coefficients).all() and np.isfinite(intercept)):
        raise ValueError(f"{path}: a coefficient is not finite; fit again")
    return fields, coefficients, float(intercept)


def _read_weights(
    path: str | Path, name: str, content: bytes
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coefficients and intercept: arrays of float64 as `np.savez` stores them."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as members:
            if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
                raise ValueError("it is compressed")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            coefficients, intercept = arrays["coefficients"], arrays["intercept"]
        for array in (coefficients, intercept):
            if array.dtype != np.float64:
                raise ValueError(f"its numbers are {array.dtype}")
        if intercept.shape != ():
            raise ValueError(f"its intercept has shape {intercept.shape}")
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path}: {name} is no file of coefficients ({error}); fit again"
        ) from None
    return coefficients, intercept


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _read_fields(path: str | Path) -> dict[str, Any]:
    try:
        fields = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a complete classifier file ({error}); fit and save again"
        ) from None
    if not isinstance(fields, dict) or fields.get("format") != FORMAT:
        raise ValueError(
            f"{path} is not a classifier file: its field 'format' is not {FORMAT!r}; give a file "
            "that FactualityClassifier.save wrote"
        )
    if fields.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {fields.get('version')!r}, but this library reads version "
            f"{VERSION}: upgrade conformal-retrievers, or fit again"
        )
    stored = fields.pop("sha256", None)
    if stored != _checksum(fields):
        raise ValueError(
            f"{path} was changed after it was written: its field 'sha256' does not fit the others; "
            "take the original file, or fit again"
        )
    for name, fits in _FIELDS.items():
        if name not in fields or not fits(fields[name]):
            raise ValueError(
                f"{path}: its field {name!r} is {fields.get(name)!r:.60}, which `save` never "
                "writes; take the original file, or fit again"
            )
    return fields


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "model": lambda value: isinstance(value, str),
    "variant": lambda value: isinstance(value, str),
    "layers": _is_count,
    "heads": _is_count,
    "n_snippets": _is_count,
    "weights": lambda value: re.fullmatch(r"[^/\\\0]+\.npz", str(value)) is not None,
    "weights_sha256": lambda value: isinstance(value, str),
    "fitted_on": lambda value: (
        isinstance(value, list) and all(isinstance(digest, str) for digest in value)
    ),
}
