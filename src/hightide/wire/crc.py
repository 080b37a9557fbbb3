"""CRC-32C, the checksum of every record batch.

The `crc32c` package computes it at memory speed over any buffer, writable views included, without
a copy. The import of that package takes about 50 ms, nearly all of it to read its own version
number, which is too long for the start of a broker. So only its extension module is loaded. The
normal import is the fallback, in case the layout of the package changes.
"""

from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Final, Protocol, cast


class Checksum(Protocol):
    """Return the checksum of `data`, continued from `value`, the checksum of the data before."""

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
