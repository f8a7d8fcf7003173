"""The command line `forgelet`."""

import gc
import importlib
from pathlib import Path
from types import ModuleType

#: The folder with the packages of both processes in an installed forgelet, whose only top-level package is `forgelet`.
#: A checkout does not have it: there, these packages are beside this one.
SERVERS = Path(__file__).resolve().parent / "servers"
#: Thresholds of the garbage collector during imports, which keep nearly all objects: only young ones are examined.
#: Without any collection, a server would use 7 MB more.
_ONLY_YOUNG = (5_000, 1_000)


def import_quickly(module: str) -> ModuleType:
    """Import and return a module with cheap garbage collections, which takes a sixth less time."""
    usual = gc.get_threshold()
    gc.set_threshold(*_ONLY_YOUNG)
    try:
        return importlib.import_module(module)
    finally:
        gc.set_threshold(*usual)
