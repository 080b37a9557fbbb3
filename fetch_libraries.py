"""Fetches the console's JavaScript libraries with npm, and makes them modules that import by path.

    python fetch_libraries.py        into src/hightide/console/static/vendor, unless they are there

The build runs it (`hatch_build.py`), and so does `make programs`. npm asks the registry that it is
set to; the versions and hashes are here.
"""

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

VENDOR = "src/hightide/console/static/vendor"
STAMP = "versions.json"
"""Lists what is in the folder, so that it is not fetched twice."""

NPM_S = 180


class Package(NamedTuple):
    """A package of npm's registry, and what the console takes from it."""

    name: str
    version: str
    integrity: str
    """The hash of the archive, as npm writes it."""
    files: dict[str, str]
    """Path in the package → name in the folder."""
    folder: str
    """The start of the name of its licence in the folder."""


PACKAGES = (
    Package(
        "preact",
        "11.2.0",
        "sha512-/HfHI/7N84e6GrWBJ3J280z3mLaRJiDcSvj/A+y/4AbLnND/1UlGHe1sR6oYuTGwId0nP7dqDU9OnLxMPZ7xBg==",
        {"dist/preact.mjs": "preact.js", "hooks/dist/hooks.mjs": "preact-hooks.js"},
        "preact",
    ),
    Package(
        "htm",
        "3.1.1",
        "sha512-983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==",
        {"dist/htm.mjs": "htm.js"},
        "htm",
    ),
    Package(
        "@preact/signals",
        "2.11.4",
        "sha512-Rb+5RPo9gWSaHtzJeauhHxiC8KP/IF2DEPkHPEOGOnuy2wnJzRqyeLRankUCYd6ADqtxS6GnWGv6Ie343d8aYw==",
        {"dist/signals.mjs": "signals.js"},
        "signals",
    ),
    Package(
        "@preact/signals-core",
        "1.14.5",
        "sha512-vcRv7Ityz5JVmeiVqIluLFzT/PDS/AlhHUpw3/aUWqcVUs6bDGIPXE/6RSC4evBNWYvnniozg5Syfj33al3gkg==",
        {"dist/signals-core.mjs": "signals-core.js"},
        "signals-core",
    ),
    Package(
        "uplot",
        "1.6.32",
        "sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMasNuGGzQm/ep3tOkyTxpiQIw==",
        {"dist/uPlot.esm.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"},
        "uplot",
    ),
)

SPECIFIERS = {
    "preact": "./preact.js",
    "preact/hooks": "./preact-hooks.js",
    "@preact/signals-core": "./signals-core.js",
}
"""What the modules import by name → by path: a browser resolves names only with an import map, and
that would be an inline script, which the console's policy forbids."""

IMPORT = re.compile(r"""(\b(?:from|import)\s*\(?\s*)(["'])([@a-z][@\w/.-]*)\2""")
SOURCE_MAP = re.compile(r"//# sourceMappingURL=\S+\s*\Z")


class NotVendored(Exception):
    """The libraries could not be fetched; the text says why."""


def vendor(folder: Path, packages: tuple[Package, ...] = PACKAGES) -> None:
    """Put the packages' files into the folder; raise NotVendored if that is not possible."""
    stamp = {package.name: [package.version, package.integrity] for package in packages}
    wanted = {name for package in packages for name in package.files.values()}
    try:
        known = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        known = None
    if known == stamp and all((folder / name).exists() for name in wanted):
        return
    files: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as temporary:
        archives = fetch(packages, Path(temporary))
        for package in packages:
            if package.name not in archives:
                raise NotVendored(f"npm gave something unexpected: no {package.name}")
            files |= contents(package, archives[package.name])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")


def fetch(packages: tuple[Package, ...], folder: Path) -> dict[str, bytes]:
    """Fetch the archives with npm, from the registry that npm is set to."""
    wanted = [f"{package.name}@{package.version}" for package in packages]
    if shutil.which("npm") is None:
        raise NotVendored("npm is not installed")
    command = ["npm", "pack", "--json", "--pack-destination", str(folder), *wanted]
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=folder, timeout=NPM_S
        )
        packed = {entry["name"]: entry["filename"] for entry in json.loads(done.stdout)}
        # Some versions of npm print the name that a scoped package would have in a registry.
        return {
            name: (folder / file.replace("@", "").replace("/", "-")).read_bytes()
            for name, file in packed.items()
        }
    except subprocess.TimeoutExpired:
        raise NotVendored(f"npm took longer than {NPM_S} s") from None
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "warn" not in line]
        raise NotVendored("npm failed: " + " ".join(lines)[:500]) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotVendored(f"npm gave something unexpected: {error}") from None


def contents(package: Package, archive: bytes) -> dict[str, bytes]:
    """The package's files and licence by their names in the folder, if the hash is right."""
    found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if found != package.integrity:
        raise NotVendored(f"{package.name} {package.version} has another hash than expected")
    files: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as packed:
        for path, name in {**package.files, "LICENSE": f"{package.folder}.LICENSE"}.items():
            try:
                member = packed.extractfile(f"package/{path}")
            except KeyError:
                member = None
            if member is None:
                raise NotVendored(f"{package.name} {package.version} has no file {path}")
            content = member.read()
            files[name] = rewritten(content) if path.endswith(".mjs") else content
    return files


def rewritten(module: bytes) -> bytes:
    """A module that imports its neighbours by path and names no map of its source."""

    def by_path(found: re.Match[str]) -> str:
        before, quote, name = found.groups()
        if name not in SPECIFIERS:
            raise NotVendored(f"a module imports {name}, which is not there")
        return f"{before}{quote}{SPECIFIERS[name]}{quote}"

    return SOURCE_MAP.sub("", IMPORT.sub(by_path, module.decode())).encode()


if __name__ == "__main__":
    try:
        vendor(Path(__file__).parent / VENDOR)
    except NotVendored as problem:
        sys.exit(f"The console will have no pages: {problem}")
