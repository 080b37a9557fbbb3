"""Commands of `hightide`, run in the process of the tests, which is faster than a new process."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hightide.__main__ import main


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self):
        assert self.code == 0, self.err
        return self.out.splitlines()


def runner(bootstrap, capfd, monkeypatch):
    def command(*arguments):
        monkeypatch.setenv("HIGHTIDE_BOOTSTRAP", bootstrap)
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return Done(code, said.out, said.err)

    return command
