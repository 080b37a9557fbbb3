"""Why a cluster is not healthy, and what to do next.

    problems of partitions ──▶ causes: a dead broker and all that it takes with it, a full disk, …

One dead broker makes hundreds of partitions under-replicated.  An operator needs the broker, what
is affected, and the next command.  Commands are without `--bootstrap`; the command line adds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from hightide.client.model.health import (
    Problem,
    ProblemKind,
    awaited,
    counted,
    problems,
    users_first,
)
from hightide.client.model.replicas import PartitionReplicas, ReplicaReport, ReplicasDescription

TOPICS_NAMED = 10
INDEXES_NAMED = 20


class CauseKind(Enum):
    """Kinds of causes, in the order in which they are shown."""

    NO_CONTROLLER = "no controller"
    BROKER_NOT_ALIVE = "broker not alive"
    BROKER_SILENT = "broker silent"
    REPLICA_FAILED = "replicas failed"
    LOST_RECORDS = "lost records"
    OFFLINE = "offline"
    UNDER_MIN_ISR = "under min ISR"
    REPLICA_BEHIND = "replicas behind"
    REASSIGNING = "reassigning"
    """A reassignment in progress is no problem; it explains what else is shown."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The partitions that have a problem because of a cause, users' topics first."""

    kind: ProblemKind
    partitions: list[str]
    internal: int
    """How many of them, at the end, belong to internal topics."""


@dataclass(frozen=True, slots=True)
class NextStep:
    command: str
    """The next command to type."""
    advice: str = ""
    """When or where to type it, and what to expect."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is wrong; `address` and `last_seen_ms` are None if unknown."""

    kind: CauseKind
    broker: int | None
    address: str | None
    last_seen_ms: int | None
    cause: str
    effects: list[Effect]
    next: NextStep


def causes(
    cluster: ReplicasDescription,
    min_isr: Mapping[str, int],
    *,
    is_local: bool = False,
    now_ms: int | None = None,
) -> list[Cause]:
    """The causes of all problems; `is_local`: `hightide up` on this host runs the brokers."""
    return _Causes(cluster, problems(cluster, min_isr), is_local, now_ms).found()


class _Causes:
    """Assigns the problems of partitions to what causes them."""

    def __init__(
        self,
        cluster: ReplicasDescription,
        found: Sequence[Problem],
        is_local: bool,
        now_ms: int | None,
    ) -> None:
        self._cluster = cluster
        self._problems = found
        self._is_local = is_local
        self._now_ms = now_ms
        self._partitions = {
            (partition.topic, partition.partition): partition for partition in cluster.partitions
        }
        self._grouped: dict[tuple[CauseKind, int | None, str], list[Problem]] = {}

    def found(self) -> list[Cause]:
        for problem in self._problems:
            for cause in self._blamed(problem):
                self._grouped.setdefault(cause, []).append(problem)
        order = {kind: nth for nth, kind in enumerate(CauseKind)}
        grouped = sorted(self._grouped.items(), key=lambda item: (order[item[0][0]], item[0][1:2]))
        found = [self._cause(kind, broker, sort, of) for (kind, broker, sort), of in grouped]
        return [*found, *self._reassignments()]

    def _blamed(self, problem: Problem) -> list[tuple[CauseKind, int | None, str]]:
        """The causes of a problem: usually one, and several if it would stay without any of them.

        The third part tells failures of one broker apart: a full disk, a failed one, damage.
        """
        match problem.kind:
            case ProblemKind.NO_CONTROLLER:
                return [(CauseKind.NO_CONTROLLER, None, "")]
            case ProblemKind.BROKER_NOT_ALIVE:
                return [(CauseKind.BROKER_NOT_ALIVE, problem.broker, "")]
            case ProblemKind.BROKER_SILENT:
                return [(CauseKind.BROKER_SILENT, problem.broker, "")]
            case ProblemKind.REPLICA_FAILED:
                return [
                    (CauseKind.REPLICA_FAILED, problem.broker, failure(self._report(problem))[0])
                ]
            case ProblemKind.LOST_RECORDS:
                return [(CauseKind.LOST_RECORDS, problem.broker, "")]
        partition = self._partition(problem)
        is_offline = problem.kind is ProblemKind.OFFLINE
        absent = awaited(partition) if is_offline else partition.missing
        found = [cause for broker in absent if (cause := self._outage(partition, broker))]
        if found:
            return found
        if is_offline:
            return [(CauseKind.OFFLINE, None, "")]
        behind: list[tuple[CauseKind, int | None, str]] = [
            (CauseKind.REPLICA_BEHIND, broker, "") for broker in absent
        ]
        return behind or [(CauseKind.UNDER_MIN_ISR, None, "")]

    def _outage(
        self, partition: PartitionReplicas, broker: int
    ) -> tuple[CauseKind, int | None, str] | None:
        """What is wrong with a broker itself, so far as this partition is concerned."""
        if broker not in self._cluster.live:
            return CauseKind.BROKER_NOT_ALIVE, broker, ""
        if broker in self._cluster.silent:
            return CauseKind.BROKER_SILENT, broker, ""
        report = partition.reports.get(broker)
        if report and report.failure:
            return CauseKind.REPLICA_FAILED, broker, failure(report)[0]
        return None

    def _partition(self, problem: Problem) -> PartitionReplicas:
        assert problem.topic is not None
        assert problem.partition is not None
        return self._partitions[problem.topic, problem.partition]

    def _report(self, problem: Problem) -> ReplicaReport:
        assert problem.broker is not None
        return self._partition(problem).reports[problem.broker]

    def _cause(
        self, kind: CauseKind, broker: int | None, sort: str, found: Sequence[Problem]
    ) -> Cause:
        first = min(
            (problem for problem in found if problem.topic is not None),
            key=lambda problem: self._partition(problem).is_internal,
            default=None,
        )
        name = "" if first is None else f"{first.topic}/{first.partition}"
        return Cause(
            kind,
            broker,
            None if broker is None else self._cluster.addresses.get(broker),
            None if broker is None else self._cluster.last_seen_ms.get(broker),
            self._sentence(kind, broker, sort, found, first),
            self._effects(found),
            self._next(kind, broker, sort, name),
        )

    def _effects(self, found: Sequence[Problem]) -> list[Effect]:
        kinds: dict[ProblemKind, list[PartitionReplicas]] = {}
        for problem in found:
            if problem.topic is not None:
                kinds.setdefault(problem.kind, []).append(self._partition(problem))
        return [
            Effect(
                kind,
                [partition.name for partition in users_first(partitions)],
                sum(partition.is_internal for partition in partitions),
            )
            for kind, partitions in kinds.items()
        ]

    # -- sentences -------------------------------------------------------------------------

    def _sentence(
        self,
        kind: CauseKind,
        broker: int | None,
        sort: str,
        found: Sequence[Problem],
        first: Problem | None,
    ) -> str:
        own = next((problem for problem in found if problem.topic is None), None)
        match kind:
            case CauseKind.BROKER_NOT_ALIVE:
                assert broker is not None
                return self._not_alive(broker)
            case CauseKind.BROKER_SILENT:
                assert broker is not None
                return self._silent(broker)
            case CauseKind.REPLICA_FAILED if first is not None:
                assert broker is not None
                why = failure(self._report_of(first, broker))[1]
                failed = sum(problem.kind is ProblemKind.REPLICA_FAILED for problem in found)
                return (
                    f"{self._named(broker)}: the log of {counted(failed, 'replica')} is {sort}:"
                    f" {sentence(why)}"
                )
            case CauseKind.LOST_RECORDS if first is not None:
                assert broker is not None
                return f"{self._named(broker)} lost committed records. {first.problem}"
            case CauseKind.REPLICA_BEHIND if first is not None:
                assert broker is not None
                statuses = {one.replica: one for one in self._partition(first).statuses()}
                return (
                    f"{self._named(broker)} is alive and has replicas out of sync; replica {broker}"
                    f" of {first.topic}/{first.partition}: {statuses[broker].why}."
                )
            case CauseKind.OFFLINE | CauseKind.UNDER_MIN_ISR if first is not None:
                return first.problem
        return own.problem if own else kind.value

    def _named(self, broker: int) -> str:
        address = self._cluster.addresses.get(broker)
        return f"Broker {broker} ({address or 'address unknown'})"

    def _not_alive(self, broker: int) -> str:
        seen_ms = self._cluster.last_seen_ms.get(broker)
        seen = "unknown"
        if seen_ms is not None:
            seen = datetime.fromtimestamp(seen_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            if self._now_ms is not None:
                seen += f", {_duration(max(0, self._now_ms - seen_ms))} ago"
        held = sum(broker in partition.state.replicas for partition in self._cluster.partitions)
        return (
            f"{self._named(broker)} is not alive and holds {counted(held, 'replica')}; last seen:"
            f" {seen}."
        )

    def _silent(self, broker: int) -> str:
        leads = sum(partition.leader == broker for partition in self._cluster.partitions)
        return (
            f"{self._named(broker)} is registered but does not answer; it leads"
            f" {counted(leads, 'partition')}. {self._cluster.silent[broker]}"
        )

    def _report_of(self, problem: Problem, broker: int) -> ReplicaReport:
        return self._partition(problem).reports[broker]

    # -- next steps ------------------------------------------------------------------------

    def _next(self, kind: CauseKind, broker: int | None, sort: str, name: str) -> NextStep:
        show = f"hightide partition show {name}"
        match kind:
            case CauseKind.NO_CONTROLLER:
                return NextStep(
                    "hightide cluster controller",
                    "Brokers elect a controller through ZooKeeper, within their session timeout. If"
                    " there is none after that, see whether ZooKeeper runs.",
                )
            case CauseKind.BROKER_NOT_ALIVE:
                return self.start(broker)
            case CauseKind.BROKER_SILENT if self._is_local:
                return NextStep(
                    f"hightide broker resume {broker}",
                    f"If it was not paused: hightide broker restart {broker}",
                )
            case CauseKind.BROKER_SILENT:
                return NextStep(
                    "hightide doctor",
                    "It says whether the broker can be reached from here; if it can, the process"
                    " hangs: see its log, and restart it.",
                )
            case CauseKind.REPLICA_FAILED if sort == "damaged":
                return NextStep(
                    show, "The replica is copied from another one; if it stays, see the log."
                )
            case CauseKind.REPLICA_FAILED:
                return NextStep(
                    f"hightide cluster logdirs --broker {broker}",
                    "Free space on the disk, and the replicas return by themselves."
                    if sort == "full"
                    else "The replicas return by themselves when the disk works again.",
                )
            case CauseKind.LOST_RECORDS:
                return NextStep(
                    show, "Find out which disk lost data before you restart the broker."
                )
            case CauseKind.OFFLINE:
                return NextStep(
                    f"hightide partition elect --topic {name} --unclean --dry-run",
                    "It shows which replica an unclean election would choose, with which records;"
                    " what this replica lacks is lost.",
                )
            case CauseKind.REPLICA_BEHIND:
                return NextStep(f"{show} --watch", "If it does not catch up, see the broker's log.")
        return NextStep(show)

    def start(self, broker: int | None) -> NextStep:
        never = "If it never returns, move its replicas: hightide partition reassign TOPIC --to …"
        if self._is_local:
            return NextStep(
                f"hightide broker restart {broker}",
                f"If it was paused: hightide broker resume {broker}",
            )
        if self._cluster.others:
            return NextStep(
                "kafka-server-start.sh server.properties", f"On the host of the broker. {never}"
            )
        return NextStep(
            "hightide broker start --config server.properties",
            f"On the host of the broker; the end of its log says why it ended. {never}",
        )

    def _reassignments(self) -> Iterator[Cause]:
        moving = [one for one in self._cluster.partitions if one.state.is_reassigning]
        if moving:
            yield Cause(
                CauseKind.REASSIGNING,
                None,
                None,
                None,
                f"{counted(len(moving), 'partition')} {'is' if len(moving) == 1 else 'are'} being"
                f" reassigned: {names(moving)}.",
                [],
                NextStep("hightide partition reassign --list"),
            )


def failure(report: ReplicaReport) -> tuple[str, str]:
    """The kind of a failure in one word, and why."""
    sort, _, why = report.failure.partition(": ")
    return sort, why or sort


def sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _duration(ms: int) -> str:
    seconds = ms // 1000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7_200 else f"{seconds // 3_600} h"


def names(partitions: Collection[PartitionReplicas]) -> str:
    """Partitions by topic, users' topics first; of internal topics only their number.

    orders/0,2 payments/1 and 50 of internal topics
    """
    internal = sum(partition.is_internal for partition in partitions)
    return short_names([partition.name for partition in users_first(partitions)], internal)


def short_names(partitions: Sequence[str], internal: int) -> str:
    """The same for names, of which the last are of `internal` topics."""
    by_name: dict[str, list[str]] = {}
    for name in partitions[: len(partitions) - internal]:
        topic, _, index = name.rpartition("/")
        by_name.setdefault(topic, []).append(index)
    words = [f"{topic}/{_indexes(found)}" for topic, found in by_name.items()]
    if len(words) > TOPICS_NAMED:
        words[TOPICS_NAMED:] = [f"and {counted(len(words) - TOPICS_NAMED, 'more topic')}"]
    if internal:
        words.append(f"{'and ' if words else ''}{internal} of internal topics")
    return " ".join(words)


def _indexes(indexes: Sequence[str]) -> str:
    """At most some indexes of one topic."""
    if len(indexes) <= INDEXES_NAMED:
        return ",".join(indexes)
    return f"{','.join(indexes[:INDEXES_NAMED])},… ({len(indexes)} partitions)"
