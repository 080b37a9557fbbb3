"""CRC-32C, the checksum of every record batch.

The `crc32c` package computes it at memory speed over any buffer, writable views included, so
nothing is copied. Importing that package costs some 50 ms, nearly all of it spent on reading its
own version number; a broker should answer sooner than that. Its extension module is therefore
loaded by itself, without running the package around it, and the ordinary import remains as the
way out should the package ever be laid out differently.
"""

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Final, Protocol, cast


class Checksum(Protocol):
    """The checksum of `data`, or of all data so far when `value` is that of what came before."""

    def __call__(self, data: bytes | bytearray | memoryview, value: int = ..., /) -> int: ...


def _load_extension() -> Checksum | None:
    package = PathFinder.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if spec is None or spec.loader is None:
        return None
    try:
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return cast("Checksum | None", getattr(module, "crc32c", None))


def _load_package() -> Checksum:
    import crc32c as package

    return package.crc32c


crc32c: Final[Checksum] = _load_extension() or _load_package()
