"""What the project needs besides Python, made when it is built or installed.

* `hightide/wire/_record_walk.c` is compiled. Without a working compiler the build goes on:
  `hightide/wire/record_walk.py` has the same in Python.
* A wheel has the documentation, which the console serves.
* The console's JavaScript libraries are fetched (`fetch_libraries.py`). Without npm the build goes
  on: the console serves a page that says what is missing.
"""

import subprocess
import sys
import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/hightide/wire/_record_walk.c"
BUILT = "src/hightide/wire/_record_walk.abi3.so"
DOCUMENTS = "hightide/console/documents"


class BuildParts(BuildHookInterface):  # type: ignore[type-arg]
    """Builds both beside their sources, where an editable installation finds them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if self.target_name == "wheel" and version != "editable":
            # An editable installation serves the checkout's own pages.
            for page in (root / "docs", *root.glob("*.md")):
                build_data["force_include"][str(page)] = f"{DOCUMENTS}/{page.name}"
        libraries = neighbour(root / "fetch_libraries.py")
        try:
            libraries.vendor(root / libraries.VENDOR)
            build_data["artifacts"].append(f"/{libraries.VENDOR}/*")
        except libraries.NotVendored as problem:
            self.app.display_warning(f"The console will have no pages: {problem}")
        if self.target_name != "wheel" or not compile_module(root):
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"].append(BUILT)


def neighbour(path: Path) -> Any:
    """Import a file beside this one: a build has only the backend on its path."""
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def compile_module(root: Path) -> bool:
    """Return whether the module was built; remove one that an earlier build left."""
    built = root / BUILT
    built.unlink(missing_ok=True)
    if sys.implementation.name != "cpython" or sys.platform == "win32":
        return False
    compiler = (sysconfig.get_config_var("CC") or "cc").split()
    include = sysconfig.get_path("include")
    link = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    made = built.with_suffix(".new")
    options = ["-O2", "-fPIC", f"-I{include}", *link, str(root / SOURCE), "-o", str(made)]
    for command in (compiler, ["cc"]):
        try:
            subprocess.run([*command, *options], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            made.unlink(missing_ok=True)
            continue
        made.replace(built)
        return True
    return False
