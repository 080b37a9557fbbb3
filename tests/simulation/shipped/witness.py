"""Reports the actions of brokers to the checker, by a look at them after every callback.

The checker is that of the fast simulator, so it sees the shipped brokers in the shape of simulated
ones.  A separate reader reads the logs from their files; of the broker's view of its log, only the
start and end offsets are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hightide.broker.controller.context import decode_state
from hightide.broker.replication.replica import Replica
from hightide.core.partition.state import PartitionState
from hightide.log.log import Log
from hightide.log.log_manager import LogManager
from hightide.wire import batch
from hightide.zookeeper import znodes
from tests.simulation.checkers import Checker, Violated
from tests.simulation.disk import NOTHING, Entry
from tests.simulation.shipped.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from tests.simulation.shipped.machine import Machine
    from tests.simulation.shipped.simulation import Shape

Partition = tuple[str, int]

_LATE_MS = 20
"""A new leader is seen to lead after the callback in which it began, by this much at most."""


class LogView:
    """The records of a log, read as it grows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._entries: list[Entry] = []
        self._segment = -1
        self._position = 0
        self._cuts = -1

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def entries(self) -> list[Entry]:
        """By offset."""
        log = self._log
        if log.truncations != self._cuts:
            self._cuts = log.truncations
            self._entries, self._segment, self._position = [], -1, 0
        if len(self._entries) < log.end_offset:
            self._read_on()
        while len(self._entries) < log.end_offset:
            self._entries.append(NOTHING)
        if len(self._entries) != log.end_offset:
            raise Violated(f"{log.directory} ends at {log.end_offset}, its file behind that")
        return self._entries

    def _read_on(self) -> None:
        disk: Any = self._log.disk
        with disk.working():
            self._read_segments()

    def _read_segments(self) -> None:
        for segment in self._log.segments:
            if segment.base_offset < self._segment:
                continue
            if segment.base_offset > self._segment:
                self._segment, self._position = segment.base_offset, 0
            file = segment.opened()
            data = file.read(self._position, file.size - self._position)
            self._position = file.size
            for at, header in batch.batches(data):
                for record in batch.records(data, at):
                    self._add(record.offset, header.leader_epoch, record.value or b"")

    def _add(self, offset: int, epoch: int, value: bytes) -> None:
        entries = self._entries
        if offset < len(entries) or (entries and epoch < entries[-1].epoch):
            raise Violated(f"I4 {self._log.directory} has {value!r} of epoch {epoch} at {offset}")
        entries.extend([NOTHING] * (offset - len(entries)))
        entries.append(Entry(epoch, value.decode()))


class Role:
    """A replica, as of the last look."""

    def __init__(self, broker: ObservedBroker, replica: Replica) -> None:
        self.broker = broker
        self.partition = (replica.topic, replica.partition)
        self.replica = replica
        self.log = broker.view(replica.log)
        self.machine: Any = None
        """The Leader or the Follower."""
        self.high_watermark = -1
        self.end_offset = replica.log.end_offset
        self.cuts = replica.log.truncations
        self.lost_records = replica.lost_records
        self.compared = 0
        """The offset up to which the checker has compared the log with the committed records."""


class ObservedBroker:
    """A shipped broker, in the shape that the checker expects."""

    def __init__(self, machine: Machine, min_isr: int) -> None:
        self._machine = machine
        self.min_isr = min_isr
        self.id = machine.broker_id
        self.name = machine.name
        self.seen: dict[Partition, Role] = {}
        self.process: Any = None
        self._views: dict[Log, LogView] = {}
        self.noted = (0, 0)
        self._logs: dict[Partition, LogView] = {}
        self._disk = machine.disk

    @property
    def incarnation(self) -> int:
        return self._machine.incarnation

    @property
    def is_up(self) -> bool:
        return self._machine.broker is not None

    @property
    def epoch(self) -> int:
        broker = self._machine.broker
        return -1 if broker is None else broker.broker_epoch

    @property
    def roles(self) -> dict[Partition, Role]:
        """The leaders and followers of the broker."""
        return {key: role for key, role in self.seen.items() if role.machine is not None}

    @property
    def logs(self) -> dict[Partition, Any]:
        """All logs on its disk, also without a role yet; until the next process has opened them,
        as the last one left them."""
        return self._logs if self.is_read else {}

    @property
    def is_read(self) -> bool:
        """Forget the logs: after a power cut they are unknown until a process opens them."""
        return self._disk is self._machine.disk

    def note(self, store: LogManager) -> None:
        """A log was opened, created or deleted, or all were closed."""
        self.noted = (store.changes, len(store.logs))
        if store.logs:
            self._logs = {key: self.view(log) for key, log in store.logs.items()}
            self._disk = self._machine.disk

    def view(self, log: Log) -> LogView:
        found = self._views.get(log)
        if found is None:
            found = self._views[log] = LogView(log)
        return found

    def begin(self, broker: Any) -> None:
        """The broker has restarted."""
        self.process = broker
        self.noted = (0, 0)
        self.seen = {}
        self._views = {}


class Witness:
    """Looks at the replicas of the broker that has just done something."""

    def __init__(
        self,
        machines: dict[int, Machine],
        zookeeper: ZooKeeperServer,
        *,
        topics: tuple[str, ...],
        shape: Shape,
        session_ms: int,
    ) -> None:
        """Only these topics are reported; others come and go."""
        self._shown = {
            broker_id: ObservedBroker(machine, shape.min_isr)
            for broker_id, machine in machines.items()
        }
        shown: Any = self._shown
        seen: Any = shape
        self.checker = Checker(seen, shown)
        self._zookeeper = zookeeper
        self._topics = topics
        self._most_ms = session_ms + _LATE_MS
        zookeeper.written = self._written

    # -- brokers ---------------------------------------------------------------------------

    def look(self, machine: Machine) -> None:
        """Look at a broker after one of its callbacks."""
        broker, shown = machine.broker, self._shown[machine.broker_id]
        if broker is None:
            return
        if shown.process is not broker:
            shown.begin(broker)
        logs = getattr(broker, "log_manager", None)
        if logs is not None and (logs.changes, len(logs.logs)) != shown.noted:
            shown.note(logs)
        seen, count = shown.seen, 0
        for replica in broker.replica_manager:
            if replica.topic not in self._topics:
                continue
            count += 1
            role = seen.get((replica.topic, replica.partition))
            if (
                role is None
                or role.replica is not replica
                or role.log is not shown.view(replica.log)  # it was opened again after a failure
            ):
                role = Role(shown, replica)
                seen[role.partition] = role
            if (
                (replica.leader or replica.follower) is not role.machine
                or replica.high_watermark != role.high_watermark
                or replica.log.truncations != role.cuts
            ):
                self._changed(machine, role)
            role.end_offset = replica.log.end_offset
        if count < len(seen):
            present = [(replica.topic, replica.partition) for replica in broker.replica_manager]
            shown.seen = {key: role for key, role in seen.items() if key in present}

    def _changed(self, machine: Machine, role: Role) -> None:
        checker: Any = self.checker
        replica, log = role.replica, role.replica.log
        if log.truncations != role.cuts:
            role.cuts = log.truncations
            machine.world.tell(
                f"{machine.name} cuts {role.partition} from {role.end_offset} to {log.end_offset}"
            )
            checker.truncates(role, min(log.end_offset, role.end_offset))
            if replica.lost_records > role.lost_records:
                checker.loses_committed(role, replica.lost_records - role.lost_records)
        if replica.high_watermark > log.end_offset:
            raise Violated(f"I5 {machine.name} {replica}: {replica.high_watermark} is committed")
        acts_as = replica.leader or replica.follower
        is_new, role.machine = acts_as is not role.machine, acts_as
        if is_new:
            role.compared = 0
        moved = replica.high_watermark > role.high_watermark
        role.high_watermark = replica.high_watermark
        if replica.leader is not None:
            if is_new:
                epoch = replica.leader.state.leader_epoch
                machine.world.tell(
                    f"{machine.name} leads {role.partition} from {log.end_offset} in epoch {epoch}"
                )
                checker.leads(role)
                now_ms = round(machine.world.now * 1000)
                checker.truth(role.partition).led_since_ms.setdefault(epoch, now_ms)
            # The high watermark that a new leader knows was committed by its predecessors.
            known = checker.committed_offset(role.partition) if is_new else 0
            if moved and replica.high_watermark > known:
                checker.committed(role, replica.high_watermark)
        elif replica.follower is not None and moved and replica.high_watermark > 0:
            checker.heard(role, replica.high_watermark)

    def fetched(self, replica: Replica, follower: int, broker_epoch: int) -> None:
        """A leader has learned how far a follower is."""
        assert replica.leader is not None
        for shown in self._shown.values():
            role = shown.seen.get((replica.topic, replica.partition))
            if role is not None and role.replica is replica:
                truth = self.checker.truth(role.partition)
                epoch = replica.leader.state.leader_epoch
                truth.fetched[follower, broker_epoch, epoch] = None

    def serves(self, replica: Replica) -> None:
        """A leader shows records to a consumer."""
        leader = replica.leader
        if leader is None or replica.topic not in self._topics:
            return
        node = self._zookeeper.tree.node(znodes.broker_path(leader.broker_id))
        if node is not None and node.stat.czxid == leader.broker_epoch:
            return  # it has its session: what it does not know yet is on its way to it
        now_ms = round(self._zookeeper.world.now * 1000)
        partition, epoch = (replica.topic, replica.partition), leader.state.leader_epoch
        self.checker.serves(partition, f"broker-{leader.broker_id}", epoch, now_ms, self._most_ms)

    # -- ZooKeeper -------------------------------------------------------------------------

    def _written(self, paths: list[str], writer: str) -> None:
        for path in paths:
            node = self._zookeeper.tree.node(path)
            if node is None:
                continue
            if path == znodes.CONTROLLER:
                self.checker.controller = writer
                self._zookeeper.world.tell(f"{writer} is elected controller")
            elif path.startswith(f"{znodes.BROKER_IDS}/"):
                found = znodes.BrokerRegistration.decode(node.data or b"", path)
                key = (znodes.broker_id_of(path), node.stat.czxid)
                self.checker._previous[key] = found.previous_epoch
            elif path.endswith("/state"):
                self._decided(path, node.data or b"", node.stat.version, writer)

    def _decided(self, path: str, data: bytes, version: int, writer: str) -> None:
        _, _, _, topic, _, index, _ = path.split("/")
        if topic not in self._topics:
            return
        partition = (topic, int(index))
        node = self._zookeeper.tree.node(znodes.topic_path(topic))
        assert node is not None
        assignment = znodes.TopicAssignment.decode(node.data or b"", znodes.topic_path(topic))
        state = decode_state(data, path, version, assignment, int(index))
        if state != self.checker.truth(partition).state:
            self._zookeeper.world.tell(f"{partition} {_shortly(state)}")
            self.checker.decided(partition, state, writer)

    def log(self, broker_id: int, partition: Partition) -> LogView:
        return self._shown[broker_id].seen[partition].log

    def states(self) -> Iterator[tuple[Partition, PartitionState | None]]:
        for partition, truth in self.checker.truths.items():
            yield partition, truth.state


def _shortly(state: PartitionState) -> str:
    text = f"{list(state.replicas)} led by {state.leader} in {state.leader_epoch}"
    text += f", ISR {list(state.isr)} v{state.partition_epoch}"
    for name in ("elr", "adding", "removing"):
        if getattr(state, name):
            text += f", {name} {list(getattr(state, name))}"
    if state.is_recovering:
        text += ", recovering"
    return f"{text}, broker epochs {state.broker_epochs}"
