"""Limits on what the request of one member makes the coordinator store.

The coordinator keeps what a member sends for as long as the member stays, in memory and in the log.
A request past a limit is refused as a whole, and nothing of it is kept.
"""

from __future__ import annotations

from collections.abc import Iterable

from hightide.core.groups.classic.classic_group import Member
from hightide.core.groups.consumer.consumer_group import ConsumerMember
from hightide.core.groups.group_rules import MAX_ID_CHARACTERS, MAX_PROTOCOLS, Rules
from hightide.core.groups.turn import Client
from hightide.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from hightide.wire.messages.groups import JoinGroupRequest, SyncGroupRequest

LARGE_BYTES = 16 * 1024
"""What members store above this size is limited for all groups together."""
_NAME_BYTES = 128  # of a topic's name in memory, about


def is_join_too_large(request: JoinGroupRequest, client: Client, rules: Rules) -> bool:
    """Whether a JoinGroup request has too many protocols, a long id, or too many bytes."""
    if len(request.protocols) > MAX_PROTOCOLS or _has_long_id(client.id, request.group_instance_id):
        return True
    texts = (*client, request.group_instance_id, request.protocol_type, request.reason)
    names = _bytes_of(protocol.name for protocol in request.protocols)
    metadata = sum(len(protocol.metadata) for protocol in request.protocols)
    return _bytes_of(texts) + names + metadata > rules.member_metadata_max_bytes


def requested_bytes(request: JoinGroupRequest | ConsumerGroupHeartbeatRequest) -> int:
    """Return about how much a request makes the coordinator keep for its member."""
    if isinstance(request, JoinGroupRequest):
        return sum(len(protocol.metadata) for protocol in request.protocols)
    return _NAME_BYTES * len(request.subscribed_topic_names or ())


def kept_bytes(member: Member | ConsumerMember | None) -> int:
    """Return about how much the coordinator keeps for a member."""
    if member is None:
        return 0
    if isinstance(member, ConsumerMember):
        return _NAME_BYTES * len(member.topic_names)
    return len(member.assignment) + sum(len(protocol.metadata) for protocol in member.protocols)


def large_bytes(members: Iterable[Member | ConsumerMember]) -> int:
    """Return how much is kept for the large ones of these members."""
    return sum(size for size in map(kept_bytes, members) if size > LARGE_BYTES)


def is_sync_too_large(request: SyncGroupRequest, rules: Rules) -> bool:
    """Whether a SyncGroup request assigns too many bytes to one member."""
    max_bytes = rules.member_metadata_max_bytes
    return any(len(assigned.assignment) > max_bytes for assigned in request.assignments)


def heartbeat_problem(
    request: ConsumerGroupHeartbeatRequest, client: Client, rules: Rules
) -> str | None:
    """Return what is too large in a ConsumerGroupHeartbeat request, or None."""
    if _has_long_id(client.id, request.member_id, request.instance_id):
        return f"an id has more than {MAX_ID_CHARACTERS} characters"
    texts = (
        *client,
        request.instance_id,
        request.rack_id,
        request.subscribed_topic_regex,
        request.server_assignor,
        *(request.subscribed_topic_names or ()),
    )
    size, max_bytes = _bytes_of(texts), rules.member_metadata_max_bytes
    if size > max_bytes:
        return f"the member has {size} bytes of metadata, at most {max_bytes} are allowed"
    return None


def _has_long_id(*ids: str | None) -> bool:
    return any(len(text) > MAX_ID_CHARACTERS for text in ids if text is not None)


def _bytes_of(texts: Iterable[str | None]) -> int:
    return sum(len(text.encode()) for text in texts if text is not None)
