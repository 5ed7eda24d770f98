"""Study files: Python files with a `pl.Study` named `study`.

Knows how to execute one without its `if __name__ == "__main__"` part, and how to say in one
sentence what is wrong with it. Does not know what becomes of the study.
"""

from __future__ import annotations

import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api.study import Study
from paceline.core.errors import PacelineError, SpecError

if TYPE_CHECKING:
    from types import ModuleType

# What the file is called while it is executed; no file has this name, so nothing is hidden by it.
_NAME = "paceline study"


def load_study(file: str) -> Study:
    """Execute a study file and return its study; its folder can be imported from afterwards."""
    path = Path(file)
    if path.is_dir():
        raise SpecError(f"{file} is a directory: give the Python file that holds the study.")
    if not path.exists():
        raise SpecError(f"there is no file {file}: give a Python file with a pl.Study named study.")
    found = vars(_executed(path))
    if "study" not in found:
        raise SpecError(f"{file} has no study: {_instead(found)}.")
    study = found["study"]
    if not isinstance(study, Study):
        kind = type(study).__name__
        raise SpecError(f"study in {file} is a {kind}: write study = pl.Study(train, space=…, …).")
    if study.spec.standing:
        raise SpecError(
            f"the study in {file} has no space, so it has nothing to run: give space=…."
        )
    return study


def _executed(path: Path) -> ModuleType:
    spec = spec_from_file_location(_NAME, path.resolve())
    if spec is None or spec.loader is None:
        raise SpecError(f"{path} is no Python file: give one whose name ends in .py.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = module_from_spec(spec)
    # Dataclasses and the like look their module up while they are made. Afterwards the name is
    # given up, so that functions travel to their workers whole instead of being looked up there.
    sys.modules[_NAME] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise SpecError(_complaint(path, error)) from None
    finally:
        del sys.modules[_NAME]
    return module


def _complaint(path: Path, error: BaseException) -> str:
    """Say what went wrong, and where in the file."""
    where = str(path.resolve())
    if isinstance(error, SyntaxError) and error.filename == where:
        return f"{path}:{error.lineno}: {error.msg}."
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == where]
    place = f"{path}:{lines[-1]}" if lines else str(path)
    if isinstance(error, PacelineError):
        return f"{place}: {error}"
    if isinstance(error, SystemExit):
        return f"{place}: it exits before there is a study."
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return f"{place}: {said}."


def _instead(found: dict[str, object]) -> str:
    """Say what a file has that could have been meant."""
    studies = [name for name, value in found.items() if isinstance(value, Study)]
    if studies:
        return f"its pl.Study is called {studies[0]}, call it study"
    names = [name for name in found if not name.startswith("_")]
    has = f"it has {', '.join(names[:8])}" if names else "it is empty"
    return f"{has}; write study = pl.Study(train, space=…, …)"
