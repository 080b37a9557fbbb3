"""Compiles `hightide/wire/_record_walk.c` when the project is built or installed.

Without a working compiler the build goes on: `hightide/wire/record_walk.py` has the same in Python.
"""

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "src/hightide/wire/_record_walk.c"
BUILT = "src/hightide/wire/_record_walk.abi3.so"


class CompileRecordWalk(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the compiled module beside its source, where an editable installation finds it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        if self.target_name != "wheel" or not compile_module(Path(self.root)):
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"
        build_data["artifacts"].append(BUILT)


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
