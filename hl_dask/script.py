"""Models named on a command line: ``model.py:Term``, and assumptions as texts."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from hl_dask.errors import DataError, FormulaError, HlDaskError, ModelError
from hl_dask.model import LightModel, Model
from hl_dask.table import Table

BASES = (Model, LightModel)


def load_module(place: str) -> ModuleType:
    """The module of a file (``models/term.py``) or of a dotted name.

    Raises
    ------
    ModelError
        When there is none, or it fails when it is imported; with the line.
    """
    path = Path(place)
    is_file = place.endswith(".py") or path.is_file()
    if is_file and not path.is_file():
        msg = f"there is no file {place!r}"
        raise ModelError(msg, file=place, remedy="give FILE.py:CLASS or a module:CLASS")
    folder = str(path.resolve().parent) if is_file else str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _from_file(path) if is_file else importlib.import_module(place)
    except HlDaskError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = getattr(error, "lineno", None) or where.lineno
        file = getattr(error, "filename", None) or where.filename
        msg = f"the model cannot be imported: {type(error).__name__}: {error}"
        raise ModelError(
            msg, file=f"{file}, line {line}", remedy="mend it, or correct its name"
        ) from error


def _from_file(path: Path) -> ModuleType:
    name = path.stem if path.stem.isidentifier() else "hl_dask_model"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = "the file cannot be imported as Python"
        raise ModelError(msg, file=str(path), remedy="give a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_model(text: str) -> Any:
    """The model class, or the function that makes a model, of ``PLACE:NAME`` or ``PLACE``.

    Raises
    ------
    ModelError
        When there is no such thing, or no name is given and there are several models.
    """
    place, colon, name = text.rpartition(":")
    if not colon or (len(place) == 1 and name.startswith(("\\", "/"))):  # C:\models\term.py
        place, name = text, ""
    module = load_module(place)
    if name:
        found = getattr(module, name, None)
        is_model = isinstance(found, type) and issubclass(found, Model)
        if found is None or not (is_model or inspect.isfunction(found)):
            msg = f"{name!r} is no model class and no function of {place}"
            raise ModelError(msg, remedy=f"the models there are: {_listed(models_of(module))}")
        return found
    models = models_of(module)
    if len(models) != 1:
        msg = f"{place} has {len(models) or 'no'} model classes; which one is meant is not said"
        raise ModelError(msg, remedy=f"add the name: {place}:NAME with {_listed(models)}")
    return models[0]


def models_of(module: ModuleType) -> list[type[Model]]:
    """Model classes that a module defines, without those that others in it derive from."""
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Model)
        and value not in BASES
        and value.__module__ == module.__name__
    ]
    return [c for c in own if not any(other is not c and issubclass(other, c) for other in own)]


def _listed(models: list[type[Model]]) -> str:
    return ", ".join(model.__name__ for model in models) or "none"


def make_model(maker: Any, data: Any, assumptions: dict[str, Any]) -> Model:
    """A model of a class, or of a function that returns one, with data and assumptions.

    Raises
    ------
    ModelError
        When the function does not return a model.
    """
    if isinstance(maker, type):
        model: Any = maker(**assumptions)
    else:
        model = maker(**assumptions)
        if not isinstance(model, Model):
            msg = f"{maker.__name__}() returned {type(model).__name__}; expected a model"
            raise ModelError(msg, remedy="return an instance of a class derived from hl.Model")
    if data is not None:
        model.data = data
    made: Model = model
    return made


def parse_setting(text: str) -> tuple[str, Any]:
    """An assumption given as ``name=value``.

    Numbers, ``true``, ``false`` and ``none`` are what they look like, anything else is text. After
    ``@`` comes a file: a table (.csv), an array (.npy) or JSON.

    Raises
    ------
    ModelError
        When it is not of that form, or the file cannot be read.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        msg = f"{text!r} is not an assumption of the form name=value"
        raise ModelError(msg, remedy="write --set rate=0.02, --set mort=@mort.csv")
    return name.strip(), _file_value(value[1:]) if value.startswith("@") else _plain_value(value)


def _plain_value(text: str) -> Any:
    named = {"true": True, "false": False, "none": None}
    if text.strip().lower() in named:
        return named[text.strip().lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _file_value(path: str) -> Any:
    try:
        if path.endswith(".npy"):
            return np.load(path, allow_pickle=False)
        if path.endswith(".json"):
            return json.loads(Path(path).read_text(encoding="utf-8"))
        if path.endswith(".csv"):
            return Table.read_csv(path)
    except (OSError, ValueError) as error:
        if isinstance(error, HlDaskError):
            raise
        msg = f"the assumption cannot be read: {error}"
        raise DataError(msg, file=path, remedy="check the file") from error
    msg = f"an assumption in the file {path!r}, whose kind is not known"
    raise ModelError(msg, file=path, remedy="give a .csv table, a .npy array or a .json value")


_FILTER = re.compile(r"\s*(.+?)\s*(==|!=|<=|>=|<|>|=|\snot\s+in\s|\sin\s)\s*(.+?)\s*$", re.DOTALL)


def parse_filter(text: str) -> tuple[str, str, Any]:
    """A row filter given as ``column operator value``, e.g. ``age >= 40`` or ``sex in F,M``.

    Values are as in :func:`parse_setting`; in quotes they are text, whatever they look like.

    Raises
    ------
    ModelError
        When it is not of that form.
    """
    found = _FILTER.match(text)
    if found is None:
        msg = f"{text!r} is no filter of the form column, operator, value"
        raise ModelError(
            msg,
            remedy="write --where 'age >= 40', --where \"product in term,whole\" (==, !=, <, "
            "<=, >, >=, in, not in)",
        )
    column, operation, value = found.groups()
    operation = " ".join(operation.split())
    if operation.endswith("in"):
        return column, operation, [_quoted_value(each.strip()) for each in value.split(",")]
    return column, operation, _quoted_value(value)


_COMPOUND = re.compile(r"[<>=!&|'\"]|\b(and|or)\b", re.IGNORECASE)


def _quoted_value(text: str) -> Any:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if _COMPOUND.search(text):
        msg = f"{text!r} is no value of a filter"
        raise ModelError(
            msg,
            remedy="give one comparison, and --where again for each further one; put text that "
            "looks like this into quotes",
        )
    return _plain_value(text)


def missing_assumption(error: HlDaskError) -> str | None:
    """The attribute of a model that a formula asked for in vain, if that is the error."""
    cause = error.__cause__
    if isinstance(error, FormulaError) and isinstance(cause, AttributeError):
        return cause.name if isinstance(cause.obj, Model) else None
    return None
