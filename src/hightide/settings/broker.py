"""All settings of a broker, and the sources of their values.

`network`, `log`, `cluster` and `process` declare them; `topic` declares those of a topic. Values
come from a properties file, then from the environment, then from the command line; the last one
wins. An error names the line, the variable or the option.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from hightide.settings import properties
from hightide.settings.cluster import (
    GroupSettings,
    QuotaSettings,
    ReplicationSettings,
    TransactionSettings,
    ZooKeeperSettings,
)
from hightide.settings.declaration import (
    DescribedSetting,
    Effect,
    InvalidSetting,
    Scope,
    Source,
    Synonym,
)
from hightide.settings.listeners import Listener, parse_listeners, parse_protocol_map
from hightide.settings.log import LogSettings
from hightide.settings.network import NetworkSettings
from hightide.settings.process import ProcessSettings
from hightide.settings.secrets import is_secret, variable_of
from hightide.settings.telemetry import TelemetrySettings

# Variables of Kafka's scripts and images that are not broker settings.
_NOT_A_SETTING = re.compile(
    r"KAFKA_(OPTS|HEAP_OPTS|JVM_PERFORMANCE_OPTS|GC_LOG_OPTS|DEBUG|JMX_.*|JAVA_.*|LOG4J.*|TOOLS_.*"
    r"|HOME|VERSION|CLUSTER_ID|MODE"
    # Kubernetes sets these for every service whose name begins with kafka.
    r"|(.*_)?SERVICE_HOST|(.*_)?SERVICE_PORT(_.*)?|(.*_)?PORT(_[0-9]+_(TCP|UDP)(_.*)?)?)"
)

# Aliases of other settings. If both are set, the other one wins.
_ALIASES = {
    "node.id": "broker.id",
    "coordinator.listen": "zookeeper.listen",
    "coordinator.credentials": "zookeeper.credentials",
}


class Broker(
    NetworkSettings,
    LogSettings,
    ZooKeeperSettings,
    ReplicationSettings,
    GroupSettings,
    TransactionSettings,
    QuotaSettings,
    ProcessSettings,
    TelemetrySettings,
):
    """All settings of one broker."""

    absent: ClassVar[dict[str, str]] = {
        "ssl.": "TLS",
        "zookeeper.ssl.": "TLS to ZooKeeper",
        "zookeeper.clientCnxnSocket": "TLS to ZooKeeper",
        "sasl.": "authentication",
        "listener.name.": "a setting for one listener",
        "authorizer.class.name": "authorization",
        "super.users": "authorization",
        "allow.everyone.if.no.acl.found": "authorization",
        "delegation.token.": "authentication by delegation token",
        "password.encoder.": "a password in ZooKeeper",
        "remote.log.": "tiered storage",
        "group.share.": "the share group",
        "share.coordinator.": "the share group",
    }

    # The place of each value, such as `server.properties:12`.
    origin: ClassVar[Mapping[str, str]] = {}
    # Values that were passed to the constructor, not as texts.
    values: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def read(cls, given: Mapping[str, str], origin: Mapping[str, str] | None = None) -> Self:
        """Return the settings for these texts by name."""
        return cls._layered(((Source.STATIC_BROKER, dict(given)),), dict(origin or {}))

    def changed(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> Self:
        """Return these settings with dynamic changes, for all brokers and for this one."""
        static = self.layers[-1:] or ((Source.STATIC_BROKER, {}),)
        changes = (
            (Source.DYNAMIC_BROKER, dict(own)),
            (Source.DYNAMIC_DEFAULT_BROKER, dict(cluster)),
        )
        origin = {name: at for name, at in self.origin.items() if name not in {**cluster, **own}}
        values = self.values or ({} if self.layers else dict(self.__dict__))
        return self._layered((*changes, *static), origin, values)

    @classmethod
    def _layered(
        cls,
        layers: tuple[tuple[Source, Mapping[str, str]], ...],
        origin: Mapping[str, str],
        values: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        given: dict[str, str] = {}
        for _, layer in reversed(layers):
            given |= layer
        for alias, name in _ALIASES.items():
            if alias in given:
                given.setdefault(name, given[alias])
        broker = cls(**{**values, **cls.parse(given, origin)})
        broker.__dict__.update(layers=layers, origin=origin, values=values)
        broker.check_together()
        return broker

    @classmethod
    def check_change(cls, changes: Mapping[str, str], scope: Scope) -> None:
        """Raise InvalidSetting unless these settings can change while brokers run.

        The scope is CLUSTER for a change on all brokers, and BROKER for one broker.
        """
        cls.parse(changes)
        problems = []
        for name in changes:
            allowed = cls.declared[name].scope
            if allowed is Scope.FIXED:
                problems.append(f"{name} cannot be changed while the broker runs")
            elif allowed is Scope.BROKER and scope is Scope.CLUSTER:
                problems.append(f"{name} can be changed only for a single broker")
        if problems:
            raise InvalidSetting(*problems)

    def check_together(self) -> None:
        """Raise InvalidSetting if values contradict each other."""
        for name, look in (
            ("listener.security.protocol.map", self._protocols),
            ("listeners", self.listening),
            ("advertised.listeners", self.advertising),
            ("metrics.listeners", self.metrics_listening),
        ):
            try:
                look()
            except InvalidSetting as wrong:
                raise InvalidSetting(self._at(name, str(wrong))) from None
        addresses = [
            (listener.host, listener.port)
            for listener in (*self.listening(), *self.metrics_listening())
            if listener.port
        ]
        if len(set(addresses)) < len(addresses):
            raise InvalidSetting(self._at("listeners", "two listeners have the same address"))
        if self.process_roles == ("controller",):
            reason = "there are no separate controllers; start a broker instead"
            raise InvalidSetting(self._at("process.roles", reason))
        if 0 < self.queued_max_request_bytes < self.socket_request_max_bytes:
            least = self.socket_request_max_bytes
            reason = f"must be -1 or at least socket.request.max.bytes, which is {least}"
            raise InvalidSetting(self._at("queued.max.request.bytes", reason))
        for name in ("coordinator.credentials", "zookeeper.credentials"):
            value = getattr(self, name.replace(".", "_"))
            user, _, password = (value or "u:p").partition(":")
            if not (user and password):
                raise InvalidSetting(self._at(name, "must be user:password, not the value given"))

    def _at(self, name: str, problem: str) -> str:
        where = self.origin.get(name)
        return f"{where}: {name}: {problem}" if where else f"{name}: {problem}"

    def _protocols(self) -> dict[str, str]:
        return parse_protocol_map(self.listener_security_protocol_map)

    def _for_controllers(self) -> set[str]:
        names = (self.controller_listener_names or "").upper().split(",")
        return {name.strip() for name in names} - {""}

    def listening(self) -> tuple[Listener, ...]:
        """Return the listeners to open, each with its host, without KRaft's controllers."""
        listeners = tuple(
            listener
            for listener in parse_listeners(self.listeners, self._protocols())
            if listener.name not in self._for_controllers()
        )
        for listener in listeners:
            if listener.protocol != "PLAINTEXT":
                raise InvalidSetting(
                    f"{listener} needs {listener.protocol}, which is not in this version;"
                    " only PLAINTEXT listeners can be opened"
                )
        if not listeners:
            raise InvalidSetting("at least one listener for clients is needed")
        return tuple(listener.bound() for listener in listeners)

    def advertising(self) -> tuple[Listener, ...]:
        """Return the advertised listeners; empty to advertise the address that each client used."""
        if self.advertised_listeners is None:
            return ()
        listening = {listener.name for listener in self.listening()}
        advertised = []
        for listener in parse_listeners(self.advertised_listeners, self._protocols()):
            if listener.name in self._for_controllers():
                continue
            if listener.name not in listening:
                raise InvalidSetting(f"{listener}: listeners has no listener of that name")
            if listener.host in ("", "0.0.0.0", "::"):
                raise InvalidSetting(f"{listener} has no host that a client can connect to")
            advertised.append(listener)
        return tuple(advertised)

    def metrics_listening(self) -> tuple[Listener, ...]:
        """Return the addresses that serve metrics and health, each with its host."""
        if not self.metrics_listeners.strip():
            return ()
        listeners = parse_listeners(
            self.metrics_listeners, {"HTTP": "HTTP"}, "metrics are not served over"
        )
        return tuple(listener.bound() for listener in listeners)

    def inter_broker_listener(self) -> str:
        """Return the name of the listener for connections between brokers."""
        listeners = self.listening()
        wanted = self.inter_broker_listener_name
        for listener in listeners:
            if listener.name == (wanted or "").upper() or (
                wanted is None and listener.protocol == self.security_inter_broker_protocol
            ):
                return listener.name
        raise InvalidSetting(f"inter.broker.listener.name: there is no listener {wanted}")

    def directories(self) -> tuple[str, ...]:
        """Return the log directories."""
        return self.log_dirs or (self.log_dir,)

    def describe(self) -> Iterator[DescribedSetting]:
        """Yield every setting with its value and its synonyms."""
        for about, value in self._values():
            synonyms = [
                Synonym(about.name, None if about.secret else given[about.name], source)
                for source, given in self.layers
                if about.name in given
            ]
            if about.default is not None:
                synonyms.append(Synonym(about.name, about.text(about.default), Source.DEFAULT))
            yield self._described(about, value, synonyms)

    def narrowed(self) -> Iterator[str]:
        """Yield a line for each listener without a host: Kafka may bind it to all addresses."""
        for listener in parse_listeners(self.listeners, self._protocols()):
            if not listener.host and listener.name not in self._for_controllers():
                everywhere = f"{listener.name}://0.0.0.0:{listener.port}"
                line = f"{listener} serves this host only; {everywhere} serves all addresses"
                yield self._at("listeners", line)

    def without_effect(self) -> Iterator[str]:
        """Yield a line for each setting that is set but has no effect, with the reason."""
        given = dict.fromkeys(name for _, layer in self.layers for name in layer)
        for name in given:
            about = self.declared[name]
            changed = getattr(self, about.attribute) != about.default
            if changed and about.effect is not Effect.FULL:
                where = self.origin.get(name)
                line = f"{name} has no effect: {about.why}"
                yield f"{where}: {line}" if where else line


def load_broker(
    config_file: Path | None, environ: Mapping[str, str], overrides: Sequence[str]
) -> Broker:
    """Read broker settings from a file, then KAFKA_* variables, then `name=value` options."""
    given: dict[str, str] = {}
    origin: dict[str, str] = {}
    for name, value, where in (
        *(_from_file(config_file) if config_file else ()),
        *_from_environment(environ),
        *_from_options(overrides),
    ):
        given[name] = value
        origin[name] = where
    return Broker.read(given, origin)


def _from_file(path: Path) -> Iterator[tuple[str, str, str]]:
    try:
        text = path.read_text("utf-8")
        for line, name, value in properties.parse(text):
            yield name, value, f"{path.name}:{line}"
    except OSError as failed:
        raise InvalidSetting(f"{path} cannot be read: {failed.strerror}") from failed
    except UnicodeDecodeError as failed:
        raise InvalidSetting(f"{path} is not UTF-8 text") from failed
    except properties.BadProperties as wrong:
        raise InvalidSetting(f"{path.name}:{wrong}") from wrong


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield settings from variables: one underscore is a dot, two an underscore, three a dash."""
    for variable, value in sorted(environ.items()):
        if variable.startswith("KAFKA_") and not _NOT_A_SETTING.fullmatch(variable):
            name = variable.removeprefix("KAFKA_").lower()
            name = name.replace("___", "-").replace("__", "\0").replace("_", ".")
            yield name.replace("\0", "_"), value, variable


def _from_options(overrides: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    for option in overrides:
        name, equals, value = option.partition("=")
        if not equals or not name.strip():
            raise InvalidSetting(f"--override {option}: an override must have the form name=value")
        refuse_secret(option)
        yield name.strip(), value.strip(), f"--override {option}"


def refuse_secret(option: str) -> None:
    """Raise InvalidSetting if an override `name=value` sets a secret; the text has no value."""
    name = option.partition("=")[0].strip()
    if is_secret(name):
        raise InvalidSetting(
            f"--override {name}: every user of this host can read arguments; put the secret into"
            f" the file of --config or into the variable {variable_of(name)}"
        )
