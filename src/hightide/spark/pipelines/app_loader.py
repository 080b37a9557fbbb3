"""Load the one app of a file, and explain every way in which that can fail.

The module of an app has a name in `sys.modules`, because the types of a dataclass are looked up
there. But Spark's workers cannot import it, so its functions are pickled by value.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from hightide.spark.explain import explain

if TYPE_CHECKING:
    from hightide.spark.streams import App

MODULE = "hightide_app_"
PYTHON, YAML = (".py",), (".yaml", ".yml")


class LoadError(Exception):
    """No app can be loaded from a file; the text says why, with file and line."""


def load(file: Path) -> App:
    """Load the app of a Python or YAML file. Nothing runs yet, and Spark is not started."""
    if not file.is_file():
        raise LoadError(f"There is no file {file}.")
    if file.suffix in PYTHON:
        return _only_app(_module(file), file)
    if file.suffix in YAML:
        return _from_yaml(file)
    raise LoadError(f"{file} is neither Python (.py) nor YAML (.yaml).")


def _module(file: Path) -> ModuleType:
    from pyspark import cloudpickle

    module = ModuleType(
        MODULE + "".join(character if character.isalnum() else "_" for character in file.stem)
    )
    module.__file__ = str(file.absolute())
    folder = str(file.absolute().parent)
    # As `python app.py` does, so that an app can import modules beside it.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        code = compile(file.read_bytes(), module.__file__, "exec")
    except SyntaxError as error:
        line = (error.text or "").strip()
        raise LoadError(
            f"{file}:{error.lineno}: {error.msg}" + (f": {line}" if line else "")
        ) from None
    except ValueError as error:  # A null byte, or bytes that are not text.
        raise LoadError(f"{file}: this is not Python source: {error}.") from None
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        exec(code, module.__dict__)
    except SystemExit as stopped:
        raise LoadError(
            f"{_last_line(stopped, file)}: the file exits while it is loaded."
        ) from None
    except Exception as error:
        raise LoadError(str(explain(error, file))) from error
    return module


def _last_line(error: BaseException, file: Path) -> str:
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file.absolute())
    ]
    return f"{file}:{lines[-1]}" if lines else str(file)


def _only_app(module: ModuleType, file: Path) -> App:
    from hightide.spark.streams import App

    found = {
        id(value): (name, value) for name, value in vars(module).items() if isinstance(value, App)
    }
    if not found:
        raise LoadError(f'{file} has no app: add app = App("name") with topics and queries.')
    if len(found) > 1:
        names = ", ".join(sorted(name for name, _ in found.values()))
        raise LoadError(f"{file} has {len(found)} apps ({names}); a file must have one.")
    ((_, app),) = found.values()
    if not app.queries:
        raise LoadError(f"{file} has an app without a query; add one with @app.query.")
    app.tests |= _tests(module)
    return app


def _tests(module: ModuleType) -> dict[str, Callable[[], None]]:
    """Return the functions that pytest would run."""
    return {
        name: value
        for name, value in vars(module).items()
        if name.startswith("test_") and callable(value)
    }


def _from_yaml(file: Path) -> App:
    from hightide.spark.streams import App, StreamsError

    try:
        return App.load(file)
    except StreamsError as error:
        text = str(error)
        raise LoadError(text if str(file) in text else f"{file}: {text}") from error
