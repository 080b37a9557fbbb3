"""The console's libraries: only what has the expected hash, as modules that import by path."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import stat
import tarfile

import pytest

import fetch_libraries
from fetch_libraries import IMPORT, PACKAGES, SPECIFIERS, STAMP, NotVendored, Package, vendor

MODULE = (
    b'import{h}from"preact";export{x}from "@preact/signals-core";//# sourceMappingURL=a.mjs.map\n'
)


def archive(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as made:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def package(content: bytes, **files: str) -> Package:
    digest = base64.b64encode(hashlib.sha512(content).digest()).decode()
    return Package("it", "1.0.0", f"sha512-{digest}", files or {"dist/it.mjs": "it.js"}, "it")


GOOD = archive({"dist/it.mjs": MODULE, "LICENSE": b"free"})


@pytest.fixture
def registry(monkeypatch):
    """What npm gives for each package; counts how often it is asked."""
    archives = {"it": GOOD}
    asked = []

    def fetch(packages, folder):
        asked.append(packages)
        return archives

    monkeypatch.setattr(fetch_libraries, "fetch", fetch)
    return archives, asked


def test_modules_import_each_other_by_path_and_have_their_licence_beside_them(tmp_path, registry):
    vendor(tmp_path / "vendor", (package(GOOD),))
    expected = b'import{h}from"./preact.js";export{x}from "./signals-core.js";'
    assert (tmp_path / "vendor" / "it.js").read_bytes() == expected
    assert (tmp_path / "vendor" / "it.LICENSE").read_bytes() == b"free"


def test_nothing_is_fetched_twice(tmp_path, registry):
    _, asked = registry
    wanted = (package(GOOD),)
    for _ in range(2):
        vendor(tmp_path / "vendor", wanted)
    assert len(asked) == 1
    (tmp_path / "vendor" / "it.js").unlink()
    vendor(tmp_path / "vendor", wanted)
    vendor(tmp_path / "vendor", (wanted[0]._replace(version="2.0.0"),))
    assert len(asked) == 3
    assert json.loads((tmp_path / "vendor" / STAMP).read_text())["it"][0] == "2.0.0"


def test_an_archive_with_another_hash_is_refused_and_leaves_what_was_there(tmp_path, registry):
    archives, _ = registry
    folder = tmp_path / "vendor"
    vendor(folder, (package(GOOD),))
    archives["it"] = GOOD + b"\0"
    with pytest.raises(NotVendored, match="another hash"):
        vendor(folder, (package(GOOD)._replace(version="2.0.0"),))
    assert (folder / "it.js").exists()


@pytest.mark.parametrize(
    ("files", "word"),
    [
        ({"LICENSE": b""}, "no file dist/it.mjs"),
        ({"dist/it.mjs": MODULE}, "no file LICENSE"),
        ({"dist/it.mjs": b'import"react"', "LICENSE": b""}, "imports react"),
    ],
)
def test_a_package_that_is_not_as_expected_is_refused(tmp_path, registry, files, word):
    archives, _ = registry
    archives["it"] = archive(files)
    with pytest.raises(NotVendored, match=word):
        vendor(tmp_path / "vendor", (package(archives["it"]),))
    assert not (tmp_path / "vendor").exists()


@pytest.mark.parametrize(
    ("script", "word"),
    [
        (None, "npm is not installed"),
        ("echo 'npm error code E404' >&2; exit 1", "E404"),
        ("echo no json", "unexpected"),
        ('echo \'[{"name": "it", "filename": "gone.tgz"}]\'', "unexpected"),
        ("echo []", "unexpected"),
    ],
)
def test_an_npm_that_fails_is_a_sentence(tmp_path, monkeypatch, script, word):
    folder = tmp_path / "bin"
    folder.mkdir()
    if script is not None:
        npm = folder / "npm"
        npm.write_text(f"#!/bin/sh\n{script}\n")
        npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}")
    with pytest.raises(NotVendored, match=word):
        vendor(tmp_path / "vendor", (package(GOOD),))


def test_npm_prints_the_name_of_a_scoped_package_in_either_form(tmp_path, monkeypatch):
    scoped = package(GOOD)._replace(name="@them/it")
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "it.tgz").write_bytes(GOOD)
    for printed in ("them-it-1.0.0.tgz", "@them/it-1.0.0.tgz"):
        reply = json.dumps([{"name": "@them/it", "filename": printed}])
        # The destination is the fourth argument.
        (folder / "npm").write_text(
            f"#!/bin/sh\n/bin/cp {tmp_path}/it.tgz $4/them-it-1.0.0.tgz\necho '{reply}'\n"
        )
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}")
        vendor(tmp_path / printed.replace("/", "-"), (scoped,))


def test_the_libraries_are_pinned_and_what_they_import_is_among_them():
    names = [name for found in PACKAGES for name in found.files.values()]
    assert len(set(names)) == len(names)
    assert {path.removeprefix("./") for path in SPECIFIERS.values()} <= {*names}
    for found in PACKAGES:
        assert len(base64.b64decode(found.integrity.removeprefix("sha512-"))) == 64


def test_only_imports_by_name_are_rewritten():
    for text in ('from "./near.js"', 'from "../up.js"', 'from "/static/x.js"', 'x="preact"'):
        assert not IMPORT.search(text)
    for text in ('from"preact"', "import 'preact'", 'import("preact/hooks")'):
        assert IMPORT.search(text)
