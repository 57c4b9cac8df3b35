"""weft: learn the distribution of trained neural networks, and sample new ones.

    zoo = weft.Zoo.from_models(models)  # nn.Modules, state_dicts, a folder, a glob, stacked tensors
    flow = weft.fit(zoo, data=(X, y))
    new = flow.sample(50)
    print(weft.evaluate(new, zoo, data=(X, y)))

Names are loaded when they are first used: `import weft` itself imports neither numpy nor the
library."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import logs as logs
    from . import onnx as onnx
    from ._align import align as align
    from ._align import matched_cosine as matched_cosine
    from ._evaluate import Evaluation as Evaluation
    from ._evaluate import compare as compare
    from ._evaluate import evaluate as evaluate
    from ._evaluate import score as score
    from ._fit import fit as fit
    from ._fit import plan as plan
    from ._fit import train_zoo as train_zoo
    from ._generator import Flow as Flow
    from ._generator import Generator as Generator
    from ._generator import Kind as Kind
    from ._generator import generator as generator
    from ._generator import generators as generators
    from ._options import settings as settings
    from ._run import Report as Report
    from ._run import Run as Run
    from ._run import run as run
    from .arch import Arch as Arch
    from .arch import Tensor as Tensor
    from .context import Context as Context
    from .context import WeftWarning as WeftWarning
    from .context import build_info as build_info
    from .data import Data as Data
    from .errors import DiskError as DiskError
    from .errors import DivergedError as DivergedError
    from .errors import InputError as InputError
    from .errors import Interrupted as Interrupted
    from .errors import LibraryError as LibraryError
    from .errors import LockedError as LockedError
    from .errors import OutOfMemoryError as OutOfMemoryError
    from .errors import RankError as RankError
    from .errors import ShapeError as ShapeError
    from .errors import SolverError as SolverError
    from .errors import UnsupportedError as UnsupportedError
    from .errors import UsageError as UsageError
    from .errors import WeftError as WeftError
    from .progress import Event as Event
    from .zoo import Zoo as Zoo

    __version__: str

# name -> module that has it
_NAMES = {
    name: module
    for module, names in {
        "_options": "settings",
        "_run": "Report Run run",
        "arch": "Arch Tensor",
        "context": "Context WeftWarning build_info",
        "data": "Data",
        "errors": "DiskError DivergedError InputError Interrupted LibraryError LockedError "
        "OutOfMemoryError RankError ShapeError SolverError UnsupportedError UsageError WeftError",
        "_align": "align matched_cosine",
        "_evaluate": "Evaluation compare evaluate score",
        "_fit": "fit plan train_zoo",
        "_generator": "Flow Generator Kind generator generators",
        "progress": "Event",
        "zoo": "Zoo",
    }.items()
    for name in names.split()
}
_MODULES = ("logs", "onnx")

__all__ = sorted([*_NAMES, *_MODULES, "__version__"])


def _get(name: str) -> Any:
    if name == "__version__":
        from ._lib import from_text, lib

        return from_text(lib.wf_version())
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _NAMES:
        value = getattr(importlib.import_module(f".{_NAMES[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


if not TYPE_CHECKING:  # type checkers would take every name for known
    __getattr__ = _get


def __dir__() -> list[str]:
    return __all__
