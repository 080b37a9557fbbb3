"""Producers that write each record once: with numbered batches, and in transactions.

An idempotent producer is measured beside one that is not, in the same round, so that what it costs
shows as a ratio for each broker. librdkafka then keeps only one request of a partition in flight
and polls without pause while it waits for the answer, whichever broker it talks to
(docs/internals/idempotence.md): these figures are about that client as much as about brokers.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from bench.harness.broker import BrokerFailure, Candidate
from bench.harness.cluster import Cluster
from bench.harness.generator import Sample
from bench.harness.lab import OTHERS, TOPIC, Lab, Measure, Metric, Workload
from bench.harness.process import cpu_s, machine_busy_s
from bench.harness.throughput import BATCHES, BYTE_METRICS, KB, MB, Load, put, ready

MANY_PRODUCERS = 8
RECORD_BYTES = 100
FIRST_OF_A_CLUSTER = ("rdkafka", "produce", "--transaction-messages", "1", "--seconds", "0.1")

# ---- numbered batches --------------------------------------------------------------------------

IDEMPOTENT_METRICS = (
    Metric("mb_per_s", "idempotent, MB/s", 0, more_is_better=True),
    Metric("plain_mb_per_s", "not idempotent, MB/s", 0, more_is_better=True),
    Metric("of_plain", "idempotent to not idempotent", 2, more_is_better=True),
    *BYTE_METRICS[1:3],
    Metric("plain_client_cpu_s_per_gb", "client CPU, not idempotent, s/GB", 2),
    OTHERS,
)


def idempotent(batch: str, replicas: int = 1, *, is_extra: bool = False) -> Workload:
    shape = ("--message-bytes", str(KB), "--batch-bytes", str(BATCHES[batch]))
    how = ("rdkafka", "produce", "--acks", "all", *shape, "--idempotence")
    loads = {flag: Load((*how, flag), replicas=replicas) for flag in ("false", "true")}

    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        cluster, rounds = lab.standing.cluster(candidate, replicas), count()

        def measure() -> Sample:
            """Measure both kinds; the first one changes from round to round."""
            order = sorted(loads, reverse=next(rounds) % 2 == 1)
            samples = {}
            for index in order:
                with ready(lab, cluster, loads[index]):
                    samples[index] = put(lab, cluster, loads[index])
            return beside(samples["false"], samples["true"])

        yield measure

    return Workload(
        f"produce-1kb-{batch}-rf{replicas}-idempotent",
        f"librdkafka produces 1 KB messages in {batch[:-2]} {batch[-2:].upper()} batches,"
        f" 6 partitions, acks=all, {replicas} replica{'s' if replicas > 1 else ''},"
        " with and without idempotence",
        IDEMPOTENT_METRICS,
        open_,
        is_extra=is_extra,
    )


def beside(plain: Sample, numbered: Sample) -> Sample:
    """Return the sample of the idempotent producer, with the figures of the other."""
    wanted = ("mb_per_s", "client_cpu_s_per_gb", "broker_cpu_s_per_gb")
    others = {f"plain_{key}": plain[key] for key in wanted}
    ratio = numbered["mb_per_s"] / plain["mb_per_s"]
    busiest = max(plain["other_cores"], numbered["other_cores"])
    return {**numbered, **others, "of_plain": ratio, "other_cores": busiest}


# ---- transactions ------------------------------------------------------------------------------

TRANSACTION_METRICS = (
    Metric("transactions_per_s", "transactions/s", 0, more_is_better=True),
    Metric("commit_p50_ms", "commit, p50, ms", 2),
    Metric("commit_p99_ms", "commit, p99, ms", 2),
    Metric("mb_per_s", "MB/s", 1, more_is_better=True),
    Metric("broker_cpu_ms_per_transaction", "broker CPU, ms/transaction", 2),
    Metric("client_cpu_ms_per_transaction", "client CPU, ms/transaction", 2),
    OTHERS,
)


def transactions(
    records: int, replicas: int = 1, producers: int = 1, *, is_extra: bool = False
) -> Workload:
    how = ("--transaction-messages", str(records), "--message-bytes", str(RECORD_BYTES))
    load = Load(("rdkafka", "produce", *how), replicas=replicas)

    @contextmanager
    def open_(lab: Lab, candidate: Candidate) -> Iterator[Measure]:
        cluster = lab.standing.cluster(candidate, replicas)
        with ready(lab, cluster, load):
            # Creates the topic of the transaction state.
            lab.generators.run(cluster, [*FIRST_OF_A_CLUSTER, "--topic", TOPIC])

        def measure() -> Sample:
            with ready(lab, cluster, load):
                if producers == 1:
                    return per_transaction(put(lab, cluster, load))
                return per_transaction(at_once(lab, cluster, load, producers))

        yield measure

    who = f", {producers} producers at once" if producers > 1 else ""
    return Workload(
        f"transactions-{records}-rf{replicas}" + (f"-x{producers}" if producers > 1 else ""),
        f"librdkafka commits transactions of {records:,} messages of {RECORD_BYTES} B,"
        f" 6 partitions, {replicas} replica{'s' if replicas > 1 else ''}{who}",
        TRANSACTION_METRICS,
        open_,
        is_extra=is_extra,
    )


def per_transaction(sample: Sample) -> Sample:
    done = sample["transactions"]
    if not done:
        raise BrokerFailure("no transaction was committed inside the window")
    sample["transactions_per_s"] = done / sample["seconds"]
    for side in ("broker", "client"):
        sample[f"{side}_cpu_ms_per_transaction"] = sample[f"{side}_cpu_s"] / done * 1e3
    for key in ("p50", "p99"):
        sample[f"commit_{key}_ms"] = sample[f"commit_{key}_us"] / 1e3
    return sample


def at_once(lab: Lab, cluster: Cluster, load: Load, producers: int) -> Sample:
    """Run several producers, each in a process, over nearly the same time."""
    words = [*load.words, "--seconds", str(lab.seconds), "--warm-up-seconds", str(lab.warm_up_s)]
    command = lab.generators.command(words, cluster)
    busy_s, used_s, began = machine_busy_s(), cpu_s(cluster.pids), time.perf_counter()
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(producers)
    ]
    said = [process.communicate() for process in started]
    elapsed = time.perf_counter() - began
    others_s = machine_busy_s() - busy_s - (cpu_s(cluster.pids) - used_s)
    for process, (_, why) in zip(started, said, strict=True):
        if process.returncode != 0:
            raise BrokerFailure(f"transactions: {' / '.join(why.strip().splitlines()[-3:])}")
    sample = added_up([json.loads(out.splitlines()[-1]) for out, _ in said])
    # Outside their windows, the clients are assumed to have the same rate.
    others_s -= sample["client_cpu_s"] * elapsed / sample["seconds"]
    return sample | {"other_cores": max(0.0, others_s / elapsed)}


def added_up(samples: Sequence[Sample]) -> Sample:
    """One sample of producers whose windows nearly coincide.

    All have measured the same brokers, so the CPU of brokers is the mean; percentiles are those of
    the slowest producer.
    """

    def mean(key: str) -> float:
        return sum(sample[key] for sample in samples) / len(samples)

    sample = {key: mean(key) for key in ("seconds", "broker_cpu_s")}
    for key in ("transactions", "records", "bytes", "client_cpu_s"):
        sample[key] = mean(key) * len(samples)
    for key in ("commit_p50_us", "commit_p99_us"):
        sample[key] = max(sample[key] for sample in samples)
    return sample | {"mb_per_s": sample["bytes"] / sample["seconds"] / MB}


ONE_BROKER = (
    idempotent("64kb"),
    idempotent("1mb", is_extra=True),
    transactions(1000),
    transactions(100, producers=MANY_PRODUCERS, is_extra=True),
)
THREE_BROKERS = (
    idempotent("64kb", replicas=3),
    idempotent("1mb", replicas=3, is_extra=True),
    transactions(1000, replicas=3),
    transactions(100, replicas=3, producers=MANY_PRODUCERS, is_extra=True),
)
