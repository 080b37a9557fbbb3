"""Read systemd units as systemd does: settings that may repeat, and the words of a command."""

from __future__ import annotations

import shlex


def settings(unit: str) -> dict[str, dict[str, list[str]]]:
    """Return the values of each setting by section; a setting that repeats has several."""
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in unit.splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith(("#", ";")):
            name, equals, value = line.partition("=")
            assert equals, line
            section.setdefault(name, []).append(value)
    return sections


def command(unit: str) -> list[str]:
    """Return the words of ExecStart, without quotes and escapes."""
    [line] = settings(unit)["Service"]["ExecStart"]
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(line)]
