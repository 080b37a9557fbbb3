"""Run one client process."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any

from tests.chaos.clients.copiers import COPIERS
from tests.chaos.clients.job import PROBER, Control, Job
from tests.chaos.clients.prober import Prober
from tests.chaos.clients.readers import READERS
from tests.chaos.clients.writers import WRITERS


def main() -> None:
    logging.disable(logging.CRITICAL)  # clients log every broken connection
    warnings.simplefilter("ignore")
    job = Job(**json.loads(sys.argv[1]))
    recorder = job.recorder()
    control = Control(job.rate)
    control.start()
    kind: Any
    if job.client == PROBER:
        kind = Prober
    elif job.role == "writer":
        kind = WRITERS[job.client]
    elif job.role == "copier":
        kind = COPIERS[job.client]
    else:
        kind = READERS[job.role, job.client]
    try:
        kind(job, recorder, control).run()
    except Exception as error:
        recorder.note("info", "died", repr(error))
        raise
    recorder.close()
    os._exit(0)  # threads of clients that cannot reach a broker would hold the process up


if __name__ == "__main__":
    main()
