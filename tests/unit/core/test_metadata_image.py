"""A broker's metadata image: which messages it accepts, and the role changes that follow.

`Cluster` is the true state, changed as controllers change it, and writes the messages.  The
properties deliver them as networks do: late, twice, or never.
"""

import uuid
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hightide.core.metadata.image import (
    Delete,
    Follow,
    ImageUpdate,
    Lead,
    MetadataImage,
    NoLeader,
    Role,
    RoleChange,
    StateChanged,
    Stop,
    published_partition,
    state_of,
)
from hightide.core.partition.state import NO_BROKER, PartitionState
from hightide.wire.codec import decode, encode
from hightide.wire.errors import ErrorCode
from hightide.wire.messages.replication import (
    PublishedBroker,
    PublishedEndpoint,
    PublishedTopic,
    PublishStateRequest,
)

ME, EPOCH = 1, 50
T, U = uuid.UUID(int=1), uuid.UUID(int=2)


def broker(broker_id: int, port: int = 9092, epoch: int = EPOCH, leaving: bool = False) -> Any:
    inside, outside = (
        PublishedEndpoint(listener=name, host="h", port=at, security_protocol="PLAINTEXT")
        for name, at in (("INSIDE", port), ("OUTSIDE", port + 10_000))
    )
    return PublishedBroker(
        broker_id=broker_id,
        broker_epoch=epoch,
        rack=f"rack {broker_id}",
        endpoints=[inside, outside] if broker_id != 3 else [inside],
        is_shutting_down=leaving,
    )


def state(leader: int = ME, epoch: int = 0, number: int = 0, **others: Any) -> PartitionState:
    isr = others.pop("isr", () if leader == NO_BROKER else (leader,))
    replicas = others.pop("replicas", (1, 2, 3))
    return PartitionState(replicas, leader, epoch, isr, partition_epoch=number, **others)


def message(
    sequence: int,
    topics: Any = (),
    *,
    full: bool = False,
    controller: tuple[int, int] = (2, 1),
    brokers: Any = None,
    removed: Any = (),
    epoch: int = EPOCH,
) -> PublishStateRequest:
    return PublishStateRequest(
        controller_id=controller[0],
        controller_epoch=controller[1],
        broker_epoch=epoch,
        sequence=sequence,
        is_full=full,
        brokers=[broker(1), broker(2), broker(3)] if brokers is None else brokers,
        topics=[
            PublishedTopic(
                name=name,
                topic_id=topic_id,
                partitions=[
                    published_partition(index, state_) for index, state_ in partitions.items()
                ],
            )
            for name, topic_id, partitions in topics
        ],
        removed_topics=list(removed),
    )


def an_image(*topics: Any) -> MetadataImage:
    image = MetadataImage(ME, "INSIDE")
    image.receive(message(0, topics, full=True), EPOCH)
    return image


def changes_of(image: MetadataImage, *args: Any, **kwargs: Any) -> tuple[RoleChange, ...]:
    received = image.receive(message(*args, **kwargs), EPOCH)
    image.check()
    assert received.error_code == ErrorCode.NONE
    return received.changes


# -- single messages -----------------------------------------------------------------------


def test_a_first_full_message_gives_every_role_in_order():
    led, followed, waiting, elsewhere = (
        state(ME),
        state(2),
        state(NO_BROKER, last_known_leader=2, elr=(2,)),
        state(3, replicas=(2, 3)),
    )
    image = MetadataImage(ME, "INSIDE")
    assert not image.is_complete
    found = changes_of(
        image, 1, [("t", T, {0: followed, 1: led, 2: waiting, 3: elsewhere})], full=True
    )
    assert found == (
        NoLeader("t", T, 2, waiting),
        Lead("t", T, 1, led),
        Follow("t", T, 0, followed, broker(2).endpoints[0]),
    )
    assert image.is_complete
    assert sorted(image.roles(), key=lambda role: role.index) == [found[2], found[1], found[0]]


def test_a_broker_elected_in_a_former_broker_epoch_does_not_lead_in_this_one():
    """A new controller publishes the states that it found before it has decided anything."""
    former, present = (
        state(ME, broker_epochs={ME: EPOCH - 1}),
        state(ME, epoch=9, number=9, broker_epochs={ME: EPOCH}),
    )
    image = MetadataImage(ME, "INSIDE")
    assert changes_of(image, 1, [("t", T, {0: former})], full=True) == (
        NoLeader("t", T, 0, former),
    )
    assert changes_of(image, 2, [("t", T, {0: present})]) == (Lead("t", T, 0, present),)


def test_an_isr_change_is_a_change_of_state_and_an_election_a_change_of_role():
    image = an_image(("t", T, {0: state(ME)}))
    wider = state(ME, number=1, isr=(1, 2))
    assert changes_of(image, 1, [("t", T, {0: wider})]) == (StateChanged("t", T, 0, wider),)
    again = state(ME, epoch=1, number=2)
    assert changes_of(image, 2, [("t", T, {0: again})]) == (Lead("t", T, 0, again),)
    lost = state(2, epoch=2, number=3)
    assert changes_of(image, 3, [("t", T, {0: lost})]) == (
        Follow("t", T, 0, lost, broker(2).endpoints[0]),
    )
    leaderless = state(NO_BROKER, epoch=3, number=4)
    assert changes_of(image, 4, [("t", T, {0: leaderless})]) == (NoLeader("t", T, 0, leaderless),)


def test_a_replica_that_is_moved_away_stops_and_one_that_is_moved_here_begins():
    image = an_image(("t", T, {0: state(2), 1: state(2, replicas=(2, 3))}))
    away, here = state(2, number=1, replicas=(2, 3)), state(2, number=1, adding=(1,))
    assert changes_of(image, 1, [("t", T, {0: away, 1: here})]) == (
        Stop("t", T, 0, away),
        Follow("t", T, 1, here, broker(2).endpoints[0]),
    )


def test_a_removed_topic_is_deleted_and_one_that_is_only_missing_is_inferred_to_be():
    image = an_image(("t", T, {0: state(), 1: state(3, replicas=(3,))}), ("u", U, {0: state()}))
    assert changes_of(image, 1, removed=[T, uuid.UUID(int=9)]) == (Delete("t", T, 0, False),)
    assert image.topic("t") is None
    assert image.topic_by_id(T) is None
    assert changes_of(image, 2, full=True) == (Delete("u", U, 0, True),)
    assert len(image) == 0


def test_a_partition_that_a_full_message_leaves_out_is_gone():
    image = an_image(("t", T, {0: state(), 1: state()}))
    assert changes_of(image, 1, [("t", T, {1: state()})], full=True) == (Delete("t", T, 0, True),)
    assert image.state("t", 0) is None


def test_a_topic_created_again_is_first_removed_although_its_epochs_are_lower():
    image = an_image(("t", T, {0: state(epoch=5, number=9), 1: state(2, replicas=(2,))}))
    created_again = state()
    assert changes_of(image, 1, [("t", U, {0: created_again})]) == (
        Delete("t", T, 0, True),
        Lead("t", U, 0, created_again),
    )
    assert image.topic_by_id(T) is None
    assert image.topic_by_id(U) is image.topic("t")
    assert changes_of(image, 2, removed=[T]) == ()


def test_partitions_that_are_added_come_in_order():
    image = an_image(("t", T, {1: state()}))
    changes_of(image, 1, [("t", T, {2: state(), 0: state()})])
    topic = image.topic("t")
    assert topic is not None
    assert list(topic.partitions) == [0, 1, 2]


def test_it_is_told_when_topics_change_and_which_are_known_to_be_deleted():
    image = an_image(("t", T, {0: state()}), ("u", U, {0: state()}))

    def told(*args: Any, **kwargs: Any) -> tuple[bool, tuple[str, ...]]:
        received = image.receive(message(*args, **kwargs), EPOCH)
        return received.topics_changed, received.deleted_topics

    assert told(1, [("t", T, {0: state(number=1)})]) == (False, ())
    assert told(2, [("t", T, {1: state()})]) == (True, ())
    assert told(3, removed=[U]) == (True, ("u",))
    assert told(4, [("t", U, {0: state()})]) == (True, ()), "the new id may be wrong"
    assert told(5, full=True) == (True, ())


def test_a_leader_that_moves_or_goes_is_followed_elsewhere_or_waited_for():
    followed, led = state(2), state(ME)
    image = an_image(("t", T, {0: followed, 1: led}))
    moved = [broker(1, port=77), broker(2, port=9999), broker(3)]
    assert changes_of(image, 1, brokers=moved) == (
        Follow("t", T, 0, followed, moved[1].endpoints[0]),
    )
    assert changes_of(image, 2, brokers=moved) == ()
    wider = state(2, number=1, isr=(1, 2))
    assert changes_of(image, 3, [("t", T, {0: wider})], brokers=[broker(1)]) == (
        Follow("t", T, 0, wider, None),
    )


def test_leaders_are_told_when_brokers_come_go_or_begin_to_stop():
    image = an_image()
    assert image.live == {1: EPOCH, 2: EPOCH, 3: EPOCH}

    def brokers_changed(sequence: int, *brokers: Any) -> bool:
        received = image.receive(message(sequence, brokers=brokers), EPOCH)
        return received.brokers_changed

    assert not brokers_changed(1, broker(3), broker(1), broker(2))
    assert brokers_changed(2, broker(1), broker(2, leaving=True))
    assert image.live == {1: EPOCH, 2: EPOCH}
    assert image.shutting_down == {2}
    assert brokers_changed(3, broker(1), broker(2, epoch=EPOCH + 1))
    assert image.live == {1: EPOCH, 2: EPOCH + 1}
    assert image.shutting_down == set()


# -- refused messages ----------------------------------------------------------------------


def test_an_older_controller_is_refused_and_changes_nothing():
    image = an_image(("t", T, {0: state()}))
    changes_of(image, 0, controller=(3, 2))
    late = message(99, full=True, controller=(2, 1), brokers=[])
    assert image.receive(late, EPOCH) == ImageUpdate(ErrorCode.STALE_CONTROLLER_EPOCH)
    assert (image.controller_id, image.controller_epoch) == (3, 2)
    assert image.state("t", 0) == state()
    assert len(image.live) == 3


@pytest.mark.parametrize("epoch", [EPOCH - 1, EPOCH + 1])
def test_a_message_for_another_broker_epoch_is_refused(epoch):
    image = an_image(("t", T, {0: state()}))
    other = message(1, full=True, controller=(3, 9), epoch=epoch)
    assert image.receive(other, EPOCH) == ImageUpdate(ErrorCode.STALE_BROKER_EPOCH)
    assert image.controller_epoch == 1
    assert len(image) == 1


def test_a_message_that_was_overtaken_or_sent_twice_is_taken_for_done():
    image = an_image(("t", T, {0: state()}))
    news = message(2, removed=[T], brokers=[broker(1)])
    assert image.receive(news, EPOCH).changes == (Delete("t", T, 0, False),)
    assert image.receive(news, EPOCH) == ImageUpdate()
    overtaken = message(1, [("t", T, {0: state(2, epoch=7, number=7)})])
    assert image.receive(overtaken, EPOCH) == ImageUpdate()
    assert len(image) == 0
    assert image.live == {1: EPOCH}


def test_a_broker_that_registered_again_listens_to_the_same_controller_from_the_start():
    image = an_image(("t", T, {0: state()}))
    changes_of(image, 40)
    created_again = state(2, epoch=1, number=1)
    first = message(0, [("t", T, {0: created_again})], full=True, epoch=EPOCH + 1)
    assert image.receive(first, EPOCH + 1).changes == (
        Follow("t", T, 0, created_again, broker(2).endpoints[0]),
    )


@pytest.mark.parametrize(("epoch", "number"), [(5, 8), (4, 9), (4, 10)])
def test_a_partition_never_goes_back(epoch, number):
    known = state(epoch=5, number=9)
    image = an_image(("t", T, {0: known}))
    older = state(2, epoch=epoch, number=number)
    assert changes_of(image, 1, [("t", T, {0: older})], full=True) == ()
    assert image.state("t", 0) == known


# -- questions of Metadata -----------------------------------------------------------------


def test_leaders_and_replicas_that_are_not_alive_are_known():
    image = an_image(("t", T, {0: state(2)}))
    found = image.state("t", 0)
    assert found is not None
    assert (image.leader(found), image.offline_replicas(found)) == (2, [])
    changes_of(image, 1, brokers=[broker(1)])
    assert (image.leader(found), image.offline_replicas(found)) == (NO_BROKER, [2, 3])
    assert image.state("t", 1) is None
    assert image.state("u", 0) is None


def test_endpoints_are_those_of_the_listener_that_was_asked_through():
    image = an_image(("t", T, {0: state()}))
    changes_of(image, 1, brokers=[broker(3), broker(2), broker(1)])
    assert [(b.broker_id, b.rack, e.port) for b, e in image.endpoints("OUTSIDE")] == [
        (1, "rack 1", 19092),
        (2, "rack 2", 19092),
    ]
    assert [b.broker_id for b, _ in image.endpoints("INSIDE")] == [1, 2, 3]
    assert image.endpoint(3, "OUTSIDE") is None
    assert image.endpoint(4, "INSIDE") is None
    assert [topic.name for topic in image] == ["t"]


# -- any history, in any order -------------------------------------------------------------


@dataclass
class Cluster:
    """The true state, and the messages about it that controllers sent to one broker."""

    luck: Random
    controller_epoch: int = 0
    sequence: int = 0
    ids: int = 0
    topics: dict[str, tuple[uuid.UUID, dict[int, PartitionState]]] = field(default_factory=dict)
    brokers: dict[int, PublishedBroker] = field(default_factory=dict)
    changed: set[tuple[str, int]] = field(default_factory=set)
    removed: list[uuid.UUID] = field(default_factory=list)
    messages: list[PublishStateRequest] = field(default_factory=list)

    def live(self) -> None:
        """Change something, and sometimes publish it."""
        happening = self.luck.choice(
            [
                self.create,
                self.delete,
                self.grow,
                self.elect,
                self.elect,
                self.alter,
                self.alter,
                self.reassign,
                self.bring_up,
                self.bring_up,
                self.take_down,
                self.fail_over,
                self.publish,
                self.publish,
                self.publish,
            ]
        )
        happening()

    def create(self) -> None:
        name = self.luck.choice("abc")
        if name not in self.topics:
            self.ids += 1
            self.topics[name] = (uuid.UUID(int=self.ids), {})
            self.grow(name)

    def grow(self, name: str | None = None) -> None:
        name = name or self.luck.choice([*self.topics, None])
        if name is not None:
            partitions = self.topics[name][1]
            for _ in range(self.luck.randint(1, 2)):
                replicas = tuple(self.luck.sample(range(1, 5), 3))
                partitions[len(partitions)] = PartitionState(replicas, replicas[0], 0, replicas)
                self.changed.add((name, len(partitions) - 1))

    def delete(self) -> None:
        if self.topics:
            topic_id, _ = self.topics.pop(self.luck.choice(list(self.topics)))
            self.removed.append(topic_id)

    def change(self, **fields: Any) -> None:
        if self.topics:
            name = self.luck.choice(list(self.topics))
            partitions = self.topics[name][1]
            index = self.luck.choice(list(partitions))
            before = partitions[index]
            made = {key: make(before) for key, make in fields.items()}
            number = before.partition_epoch + 1
            partitions[index] = replace(before, partition_epoch=number, **made)
            self.changed.add((name, index))

    def elect(self) -> None:
        self.change(
            leader=lambda before: self.luck.choice((*before.replicas, NO_BROKER)),
            leader_epoch=lambda before: before.leader_epoch + 1,
        )

    def alter(self) -> None:
        self.change(isr=lambda before: tuple(self.luck.sample(before.replicas, 2)))

    def reassign(self) -> None:
        self.change(
            replicas=lambda before: (
                *((before.leader,) if before.leader != NO_BROKER else ()),
                *self.luck.sample(
                    [broker_id for broker_id in range(1, 5) if broker_id != before.leader], 2
                ),
            )
        )

    def bring_up(self) -> None:
        which = self.luck.randint(1, 4)
        leaving = self.luck.random() < 0.2
        self.brokers[which] = broker(which, self.luck.randint(1, 3), leaving=leaving)

    def take_down(self) -> None:
        self.brokers.pop(self.luck.randint(2, 4), None)

    def fail_over(self) -> None:
        self.controller_epoch += 1
        self.publish(full=True)

    def publish(self, full: bool = False) -> None:
        if full:
            self.changed = {(name, i) for name, (_, parts) in self.topics.items() for i in parts}
        topics = [
            (name, topic_id, {i: part for i, part in parts.items() if (name, i) in self.changed})
            for name, (topic_id, parts) in self.topics.items()
        ]
        self.sequence += 1
        made = message(
            self.sequence,
            [topic for topic in topics if topic[2]],
            full=full,
            controller=(self.luck.randint(1, 4), self.controller_epoch),
            brokers=list(self.brokers.values()),
            removed=[] if full else self.removed,
        )
        self.changed, self.removed = set(), []
        self.messages.append(decode(PublishStateRequest, encode(made, 0), 0))


@dataclass
class Shell:
    """A broker that applies the role changes of its image, and checks them."""

    image: MetadataImage = field(default_factory=lambda: MetadataImage(ME, "INSIDE"))
    roles: dict[tuple[str, int], Role] = field(default_factory=dict)
    epochs: dict[tuple[uuid.UUID, int], tuple[int, int]] = field(default_factory=dict)

    def take(self, sent: PublishStateRequest) -> None:
        received = self.image.receive(sent, EPOCH)
        self.image.check()
        kinds = [type(change) for change in received.changes]
        ranks = [0 if k in (Delete, Stop) else KINDS.index(k) for k in kinds]
        assert ranks == sorted(ranks)
        for change in received.changes:
            self.carry_out(change)
        assert self.roles == {(role.topic, role.index): role for role in self.image.roles()}
        for topic in self.image:
            for index, state_ in topic.partitions.items():
                epochs = (state_.leader_epoch, state_.partition_epoch)
                before = self.epochs.get((topic.topic_id, index), (-1, -1))
                assert epochs[0] >= before[0]
                assert epochs[1] >= before[1]
                self.epochs[topic.topic_id, index] = epochs

    def carry_out(self, change: RoleChange) -> None:
        key = (change.topic, change.index)
        known = self.roles.get(key)
        # Only a role that ends may find the partition of another topic in its place.
        assert known is None or known.topic_id == change.topic_id
        match change:
            case Delete() | Stop():
                del self.roles[key]
            case StateChanged(state=now):
                assert known is not None
                assert known.state.leader_epoch == now.leader_epoch
                assert known.state != now
                self.roles[key] = replace(known, state=now)
            case _:
                assert known != change
                self.roles[key] = change


KINDS = [Delete, NoLeader, Lead, Follow, StateChanged]


def seen(image: MetadataImage) -> Any:
    """Return everything that an image answers."""
    topics = {topic.name: (topic.topic_id, topic.partitions) for topic in image}
    assert all(image.topic_by_id(topic.topic_id) is topic for topic in image)
    who = (image.controller_id, image.controller_epoch)
    return who, dict(image.brokers), image.live, image.shutting_down, topics


def history(luck: Random) -> Cluster:
    cluster = Cluster(luck)
    cluster.bring_up()
    cluster.create()
    cluster.fail_over()
    for _ in range(luck.randint(0, 40)):
        cluster.live()
    return cluster


@settings(max_examples=150, deadline=None)
@given(luck=st.randoms(use_true_random=False))
def test_messages_in_order_show_the_truth_of_their_moment(luck):
    cluster, shell = history(luck), Shell()
    for sent in cluster.messages:
        shell.take(sent)
    cluster.publish()
    shell.take(cluster.messages[-1])
    assert seen(shell.image)[1] == cluster.brokers
    assert seen(shell.image)[4] == cluster.topics


@settings(max_examples=250, deadline=None)
@given(luck=st.randoms(use_true_random=False))
def test_however_messages_were_delivered_the_newest_full_one_shows_the_truth(luck):
    cluster, shell, other = history(luck), Shell(), Shell()
    delivered = [luck.choice(cluster.messages) for _ in range(luck.randint(0, 40))]
    for sent in delivered:
        shell.take(sent)
    cluster.publish(full=True)
    newest = cluster.messages[-1]
    shell.take(newest)
    other.take(newest)
    assert seen(shell.image) == seen(other.image)
    assert seen(shell.image)[4] == cluster.topics
    assert shell.roles == other.roles
    for sent in delivered:
        shell.take(sent)
    assert seen(shell.image) == seen(other.image)


@given(
    st.builds(
        PartitionState,
        *(st.lists(st.integers(0, 9), max_size=3).map(tuple),),
        leader=st.integers(-1, 9),
        leader_epoch=st.integers(0, 9),
        isr=st.lists(st.integers(0, 9), max_size=3).map(tuple),
        elr=st.lists(st.integers(0, 9), max_size=3).map(tuple),
        last_known_leader=st.integers(-1, 9),
        partition_epoch=st.integers(0, 9),
        adding=st.lists(st.integers(0, 9), max_size=3).map(tuple),
        removing=st.lists(st.integers(0, 9), max_size=3).map(tuple),
        is_recovering=st.booleans(),
        recovery_epoch=st.integers(-1, 9),
    )
)
def test_a_state_is_published_whole_but_for_the_broker_epochs_of_followers(given_state):
    published = published_partition(7, replace(given_state, broker_epochs={1: 5}))
    assert published.partition_index == 7
    epochs = {1: 5} if given_state.leader == 1 else {}
    assert state_of(published) == replace(given_state, broker_epochs=epochs)
