"""Faults of ZooKeeper and of groups, and what administrators do meanwhile.

They are in families of their own; `faults.py` has the rest.
"""

from __future__ import annotations

import time

from hightide.core.metadata.topic_names import CONSUMER_OFFSETS
from tests.chaos.faults import LONG, SESSION, SHORT, Chaos, Happening, fault
from tests.chaos.room import DISK, NETWORK

# -- ZooKeeper ---------------------------------------------------------------------------------


@fault("zookeeper", hold_s=SESSION)
def kill_the_leader_of_zookeeper(chaos: Chaos) -> Happening:
    servers = chaos.room.zookeepers
    leader = servers.leader()
    servers.servers[leader].kill()
    yield f"killed ZooKeeper {leader + 1}"
    servers.heal()


@fault("zookeeper", hold_s=(0.5, 6.0))
def pause_the_leader_of_zookeeper(chaos: Chaos) -> Happening:
    servers = chaos.room.zookeepers
    leader = servers.leader()
    servers.servers[leader].pause()
    yield f"paused ZooKeeper {leader + 1}"
    servers.heal()


@fault("zookeeper", NETWORK, hold_s=SESSION)
def cut_a_zookeeper_off(chaos: Chaos) -> Happening:
    servers = chaos.room.zookeepers
    name = servers.machines[chaos.dice.randrange(len(servers.machines))].name
    everyone = [machine.name for machine in servers.machines] + chaos.names(chaos.room.brokers)
    chaos.network.cut([name], everyone)
    yield f"cut {name} off"
    chaos.network.heal()


@fault("zookeeper", DISK, hold_s=LONG)
def fill_the_disk_of_zookeeper(chaos: Chaos) -> Happening:
    servers = chaos.room.zookeepers
    machine = servers.machines[servers.leader()]
    assert machine.disk is not None
    machine.disk.fill()
    yield f"filled the disk of {machine.name}"
    machine.disk.empty()
    servers.heal()


@fault("zookeeper-away", hold_s=(60.0, 60.0))
def take_zookeeper_away(chaos: Chaos) -> Happening:
    servers = chaos.room.zookeepers
    servers.stop()
    yield "killed all ZooKeeper servers, for a minute"
    servers.heal()


# -- groups ------------------------------------------------------------------------------------


@fault("groups", hold_s=SHORT)
def rebalance_again_and_again(chaos: Chaos) -> Happening:
    killed = []
    for _ in range(chaos.dice.randint(3, 6)):
        killed.append(chaos.workload.kill_client("member"))
        time.sleep(chaos.dice.uniform(0.1, 1.0))
    yield f"killed {len([name for name in killed if name])} members of the group"


@fault("groups", hold_s=SESSION)
def kill_the_coordinator_and_a_member(chaos: Chaos) -> Happening:
    member = chaos.workload.kill_client("member")
    coordinator = chaos.room.partition(CONSUMER_OFFSETS, 0).leader_id
    chaos.room.kill(coordinator)
    yield f"killed broker {coordinator}, a coordinator, and {member or 'no member'}"
    chaos.room.start_missing()


@fault("groups", hold_s=SESSION)
def kill_a_copier(chaos: Chaos) -> Happening:
    killed = chaos.workload.kill_client("copier")
    yield f"killed {killed or 'no copier'} in a transaction"


# -- administrators ----------------------------------------------------------------------------


@fault("moves", hold_s=SHORT)
def reassign_a_partition(chaos: Chaos) -> Happening:
    index = chaos.dice.randrange(chaos.partitions)
    brokers = chaos.room.brokers
    replicas = chaos.dice.sample(brokers, chaos.dice.randint(2, min(3, len(brokers))))
    code = chaos.room.reassign(chaos.topic, replicas, index)
    yield f"asked for replicas {replicas} of partition {index}: {code.name}"


@fault("moves", hold_s=SHORT)
def elect_preferred_leaders(chaos: Chaos) -> Happening:
    codes = [chaos.room.elect(chaos.topic, index).name for index in range(chaos.partitions)]
    yield f"elected preferred leaders: {codes}"


@fault("moves", hold_s=SHORT)
def resign_the_controller(chaos: Chaos) -> Happening:
    before, after = chaos.room.resign()
    yield f"controller {before} resigned, now it is {after}"


@fault("moves", hold_s=SHORT)
def create_a_topic(chaos: Chaos) -> Happening:
    name = chaos.new_name()
    partitions = chaos.dice.randint(1, 6)
    factor = chaos.dice.randint(1, min(3, len(chaos.room.brokers)))
    # Noted before the request: whether the topic was created is known at the end.
    chaos.side_topics.append(name)
    chaos.room.spread_topic(name, partitions, factor)
    yield f"created {name} with {partitions} partitions of {factor} replicas"
    if name in chaos.side_topics:
        chaos.room.write(name, b"x", acks=1)


@fault("moves", hold_s=SHORT)
def delete_a_topic(chaos: Chaos) -> Happening:
    if not chaos.side_topics:
        return
    name = chaos.dice.choice(chaos.side_topics)
    chaos.room.delete_topic(name)
    chaos.side_topics.remove(name)
    chaos.deleted_topics.append(name)
    yield f"deleted {name}"
