"""Settings: valid values, inheritance, descriptions and errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hightide
from hightide.settings import (
    Broker,
    Effect,
    InvalidSetting,
    Kind,
    Scope,
    Source,
    Topic,
    load_broker,
    parse_listeners,
    reference,
)

SOURCE = Path(hightide.__file__).parent
REFERENCE = SOURCE.parent.parent / "docs" / "reference" / "settings.md"
DAY_MS = 24 * 60 * 60 * 1000


def problems(**given: str) -> str:
    with pytest.raises(InvalidSetting) as raised:
        Broker.read({name.replace("_", "."): text for name, text in given.items()})
    return str(raised.value)


def load(tmp_path: Path, text: str, *overrides: str, **environ: str) -> Broker:
    path = tmp_path / "server.properties"
    path.write_text(text)
    return load_broker(path, environ, overrides)


class TestReading:
    def test_nothing_given_means_kafkas_defaults(self) -> None:
        broker = Broker.read({})
        assert broker == Broker()
        assert broker.num_partitions == 1
        assert broker.log_segment_bytes == 1024**3
        assert broker.message_max_bytes == 1048588
        assert broker.num_recovery_threads_per_data_dir == 2
        assert broker.log_message_timestamp_after_max_ms == 3600000
        assert broker.unclean_leader_election_enable is False

    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [
            ("num.partitions", " 12 ", 12),
            ("num.partitions", "+3", 3),
            ("auto.create.topics.enable", "FALSE", False),
            ("log.cleaner.min.cleanable.ratio", "0.25", 0.25),
            ("log.cleaner.min.cleanable.ratio", "1", 1.0),
            ("log.cleanup.policy", "compact, delete", ("compact", "delete")),
            ("log.dirs", "/a,/b", ("/a", "/b")),
            ("broker.rack", "", None),
            ("broker.rack", "north", "north"),
            ("log.retention.ms", "-1", -1),
        ],
    )
    def test_a_text_becomes_a_value_of_the_settings_type(
        self, name: str, text: str, value: object
    ) -> None:
        assert getattr(Broker.read({name: text}), name.replace(".", "_")) == value

    @pytest.mark.parametrize(
        ("name", "text", "problem"),
        [
            ("log.segment.bytes", "3", "must be at least 14, not 3"),
            ("log.segment.bytes", "3000000000", "must be at most 2147483647, not 3000000000"),
            ("log.retention.bytes", "9" * 19, "must be at most 9223372036854775807"),
            ("offsets.topic.replication.factor", "40000", "must be at most 32767"),
            ("num.partitions", "1.5", "must be a whole number, not 1.5"),
            ("num.partitions", "1_000", "must be a whole number, not '1_000'"),
            ("num.partitions", "١", "must be a whole number"),
            ("num.partitions", "", "must be a whole number, not ''"),
            ("log.cleaner.min.cleanable.ratio", "nan", "must be a number, not 'nan'"),
            ("log.cleaner.min.cleanable.ratio", "1e999", "must be a number"),
            ("log.cleaner.min.cleanable.ratio", "1.5", "must be at most 1, not 1.5"),
            ("delete.topic.enable", "yes", "must be true or false, not 'yes'"),
            ("compression.type", "rar", "must be one of uncompressed, zstd"),
            ("compression.gzip.level", "0", "must be one of -1, 1, 2"),
            ("log.cleanup.policy", "compact,shred", "may contain only compact, delete"),
            ("log.dirs", "/a,,/b", "must not contain an empty entry"),
        ],
    )
    def test_a_wrong_value_is_told_with_what_it_should_have_been(
        self, name: str, text: str, problem: str
    ) -> None:
        with pytest.raises(InvalidSetting) as raised:
            Broker.read({name: text})
        assert f"{name} {problem}" in str(raised.value)

    def test_an_unknown_name_is_told_with_the_nearest_known_one(self) -> None:
        assert problems(log_segment_byte="1") == (
            "there is no setting log.segment.byte; did you mean log.segment.bytes?"
        )
        assert problems(qwertyuiop="1") == "there is no setting qwertyuiop"

    def test_all_problems_are_told_at_once(self) -> None:
        with pytest.raises(InvalidSetting) as raised:
            Broker.read({"num.partitions": "0", "log.segment.bytes": "x"})
        assert len(raised.value.problems) == 2

    @pytest.mark.parametrize(
        "name",
        [
            "ssl.keystore.location",
            "sasl.enabled.mechanisms",
            "super.users",
            "authorizer.class.name",
        ],
    )
    def test_security_that_is_not_there_is_refused_and_not_ignored(self, name: str) -> None:
        with pytest.raises(InvalidSetting, match="is not in this version"):
            Broker.read({name: "x"})

    @given(st.sampled_from(sorted(Broker.declared)), st.text())
    def test_any_text_for_any_setting_is_a_value_or_a_problem(self, name: str, text: str) -> None:
        try:
            told = repr(list(Broker.read({name: text}).describe()))
        except InvalidSetting as wrong:
            told = str(wrong)
        assert name in told

    def test_settings_are_frozen_and_equal_by_value(self) -> None:
        broker = Broker.read({"num.partitions": "3"})
        assert broker == Broker(num_partitions=3)
        assert broker != Broker()
        assert broker.replace(broker_id=7) == Broker(num_partitions=3, broker_id=7)
        assert repr(broker) == "Broker(num_partitions=3)"
        with pytest.raises(AttributeError):
            broker.num_partitions = 4  # type: ignore[misc]
        with pytest.raises(TypeError, match="nonsense"):
            Broker(nonsense=1)  # type: ignore[call-arg]


class TestSources:
    def test_an_error_names_the_file_and_the_line(self, tmp_path: Path) -> None:
        text = "# a comment\n\nbroker.id=1\nlog.segment.bytes=3\n"
        with pytest.raises(InvalidSetting) as raised:
            load(tmp_path, text)
        assert str(raised.value) == (
            "server.properties:4: log.segment.bytes must be at least 14, not 3"
        )

    def test_an_error_names_the_variable_or_the_option(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidSetting, match=r"^KAFKA_NUM_PARTITIONS: num\.partitions must"):
            load(tmp_path, "", KAFKA_NUM_PARTITIONS="none")
        with pytest.raises(InvalidSetting, match=r"^--override num\.partitions=0: num\.partitions"):
            load(tmp_path, "", "num.partitions=0")
        with pytest.raises(InvalidSetting, match="must have the form name=value"):
            load(tmp_path, "", "num.partitions")

    def test_a_later_source_is_stronger(self, tmp_path: Path) -> None:
        text = "num.partitions=1\nlog.segment.bytes=1000\nbroker.id=1"
        broker = load(tmp_path, text, "broker.id=3", KAFKA_BROKER_ID="2", KAFKA_NUM_PARTITIONS="5")
        assert (broker.broker_id, broker.num_partitions, broker.log_segment_bytes) == (3, 5, 1000)

    def test_a_wrong_value_that_is_overridden_does_no_harm(self, tmp_path: Path) -> None:
        assert load(tmp_path, "broker.id=x", "broker.id=3").broker_id == 3

    def test_of_two_lines_the_last_counts(self, tmp_path: Path) -> None:
        assert load(tmp_path, "broker.id=1\nbroker.id=2").broker_id == 2

    def test_underscores_in_a_variable_stand_for_dots_underscores_and_dashes(self) -> None:
        with pytest.raises(InvalidSetting, match=r"there is no setting a\.b_c-d"):
            load_broker(None, {"KAFKA_A_B__C___D": "1"}, [])

    @pytest.mark.parametrize(
        "variable",
        [
            "KAFKA_HEAP_OPTS",
            "KAFKA_OPTS",
            "KAFKA_JVM_PERFORMANCE_OPTS",
            "KAFKA_LOG4J_OPTS",
            "KAFKA_LOG4J_ROOT_LOGLEVEL",
            "KAFKA_JMX_PORT",
            "KAFKA_GC_LOG_OPTS",
            "KAFKA_SERVICE_HOST",
            "KAFKA_SERVICE_PORT_CLIENTS",
            "KAFKA_PORT",
            "KAFKA_PORT_9092_TCP_ADDR",
            "KAFKA_BROKER_PORT_9092_TCP",
            "PATH",
        ],
    )
    def test_variables_that_are_no_settings_are_left_alone(self, variable: str) -> None:
        assert load_broker(None, {variable: "tcp://10.0.0.1:9092"}, []) == Broker()

    def test_no_setting_is_mistaken_for_such_a_variable(self) -> None:
        for name, about in Broker.declared.items():
            variable = "KAFKA_" + name.upper().replace(".", "_")
            text = about.text(about.default) or "PLAINTEXT://localhost:1"
            try:
                told = load_broker(None, {variable: text}, []).origin[name]
            except InvalidSetting as wrong:
                told = str(wrong).partition(":")[0]
            assert told == variable

    def test_a_file_that_cannot_be_read_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidSetting, match="cannot be read"):
            load_broker(tmp_path / "none.properties", {}, [])
        (tmp_path / "binary").write_bytes(b"\xff\xfe")
        with pytest.raises(InvalidSetting, match="not UTF-8 text"):
            load_broker(tmp_path / "binary", {}, [])
        with pytest.raises(InvalidSetting, match=r"^server\.properties:2: "):
            load(tmp_path, "\na=\\u12")

    def test_kafkas_own_file_of_the_zookeeper_days_loads(self, tmp_path: Path) -> None:
        given = {
            "broker.id": "0",
            "num.network.threads": "3",
            "num.io.threads": "16",
            "socket.send.buffer.bytes": "102400",
            "socket.receive.buffer.bytes": "102400",
            "socket.request.max.bytes": "104857600",
            "log.dirs": "/var/lib/kafka",
            "num.partitions": "1",
            "num.recovery.threads.per.data.dir": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.retention.hours": "168",
            "log.retention.check.interval.ms": "300000",
            "zookeeper.connect": "localhost:2181",
            "zookeeper.connection.timeout.ms": "18000",
            "group.initial.rebalance.delay.ms": "0",
        }
        broker = load(tmp_path, "".join(f"{name}={text}\n" for name, text in given.items()))
        assert broker.broker_id == 0
        assert broker.directories() == ("/var/lib/kafka",)
        remarks = list(broker.without_effect())
        assert remarks[0].startswith("server.properties:3: num.io.threads has no effect: ")
        assert not any("num.network.threads" in line for line in remarks)

    def test_kafkas_own_file_of_the_kraft_days_loads(self, tmp_path: Path) -> None:
        text = """
            process.roles=broker,controller
            node.id=1
            controller.quorum.bootstrap.servers=localhost:9093
            listeners=PLAINTEXT://:9092,CONTROLLER://:9093
            inter.broker.listener.name=PLAINTEXT
            advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
            controller.listener.names=CONTROLLER
            listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
            share.coordinator.state.topic.replication.factor=1
            share.coordinator.state.topic.min.isr=1
            log.segment.bytes=1073741824
        """
        broker = load(tmp_path, text)
        assert broker.broker_id == 1
        assert [str(listener) for listener in broker.listening()] == ["PLAINTEXT://127.0.0.1:9092"]
        assert [str(listener) for listener in broker.advertising()] == [
            "PLAINTEXT://localhost:9092"
        ]

    def test_what_was_not_changed_is_not_remarked_on(self) -> None:
        given = {"broker.id": "1", "num.io.threads": "8", "zookeeper.connect": ""}
        assert list(Broker.read(given).without_effect()) == []


class TestTopics:
    def test_a_topic_says_inherits_or_has_the_default(self) -> None:
        broker = Broker.read({"log.segment.bytes": "1000", "log.retention.bytes": "5000"})
        topic = Topic.effective(broker, {"segment.bytes": "2000"})
        assert topic.segment_bytes == 2000
        assert topic.retention_bytes == 5000
        assert topic.cleanup_policy == ("delete",)

    @pytest.mark.parametrize(
        ("given", "retention_ms"),
        [
            ({}, 7 * DAY_MS),
            ({"log.retention.hours": "24"}, DAY_MS),
            ({"log.retention.hours": "24", "log.retention.minutes": "2"}, 120_000),
            ({"log.retention.minutes": "2", "log.retention.ms": "50"}, 50),
            ({"log.retention.hours": "-1"}, -1),
        ],
    )
    def test_retention_is_taken_from_the_finest_unit_given(
        self, given: dict[str, str], retention_ms: int
    ) -> None:
        assert Topic.effective(Broker.read(given), {}).retention_ms == retention_ms

    def test_rolling_and_flushing_follow_their_chains_too(self) -> None:
        given = {
            "log.roll.hours": "2",
            "log.roll.jitter.hours": "1",
            "log.flush.scheduler.interval.ms": "70",
        }
        topic = Topic.effective(Broker.read(given), {})
        assert (topic.segment_ms, topic.segment_jitter_ms) == (7_200_000, 3_600_000)
        assert topic.flush_ms == 70

    def test_a_plain_broker_gives_the_plain_topic(self) -> None:
        assert Topic.effective(Broker(), {}) == Topic()

    def test_a_broker_that_was_built_and_not_read_is_inherited_from_as_well(self) -> None:
        topic = Topic.effective(Broker(log_segment_bytes=1000), {})
        described = {setting.name: setting for setting in topic.describe()}
        assert topic.segment_bytes == 1000
        assert described["segment.bytes"].source is Source.STATIC_BROKER

    def test_a_wrong_setting_of_a_topic_is_named(self) -> None:
        with pytest.raises(InvalidSetting, match=r"^retention\.ms must be a whole number"):
            Topic.check({"retention.ms": "soon"})
        with pytest.raises(
            InvalidSetting, match=r"no setting retention\.m; did you mean retention"
        ):
            Topic.check({"retention.m": "1"})
        with pytest.raises(InvalidSetting, match="tiered storage is not in this version"):
            Topic.check({"remote.storage.enable": "true"})
        with pytest.raises(InvalidSetting, match="must not be more than max"):
            Topic.check({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"})
        Topic.check({"retention.ms": "1"})

    def test_what_a_topic_inherits_is_a_brokers_setting_of_the_same_limits(self) -> None:
        for about in Topic.declared.values():
            for name in about.inherits:
                broker = Broker.declared[name]
                if name.endswith(("hours", "minutes")):
                    continue
                assert (broker.kind, broker.at_least, broker.at_most, broker.one_of) == (
                    about.kind,
                    about.at_least,
                    about.at_most,
                    about.one_of,
                )


class TestDescribing:
    def test_a_broker_tells_where_each_value_came_from(self) -> None:
        static = Broker.read({"log.segment.bytes": "1000", "num.partitions": "2"})
        broker = static.changed({"log.segment.bytes": "2000"}, {"log.segment.bytes": "3000"})
        described = {setting.name: setting for setting in broker.describe()}
        segment = described["log.segment.bytes"]
        assert broker.log_segment_bytes == 3000
        assert (segment.text, segment.source) == ("3000", Source.DYNAMIC_BROKER)
        assert [(synonym.text, synonym.source) for synonym in segment.synonyms] == [
            ("3000", Source.DYNAMIC_BROKER),
            ("2000", Source.DYNAMIC_DEFAULT_BROKER),
            ("1000", Source.STATIC_BROKER),
            ("1073741824", Source.DEFAULT),
        ]
        assert described["num.partitions"].source is Source.STATIC_BROKER
        assert described["broker.id"].source is Source.DEFAULT
        assert broker.changed({}, {}) == static

    def test_values_that_were_given_as_such_survive_changes(self) -> None:
        made = Broker(listeners="PLAINTEXT://127.0.0.1:0", zookeeper_credentials="a:b")
        for _ in range(3):
            changed = made.changed({"log.segment.bytes": "2000"}, {})
            assert changed.listeners == made.listeners
            assert changed.zookeeper_credentials == "a:b"
            assert changed.log_segment_bytes == 2000
            assert changed.changed({}, {}) == made
            made = changed.changed({}, {})

    def test_a_topic_tells_the_brokers_values_behind_its_own(self) -> None:
        broker = Broker.read({"log.retention.minutes": "5"})
        topic = Topic.effective(broker, {"retention.ms": "1"})
        described = {setting.name: setting for setting in topic.describe()}
        assert [
            (synonym.name, synonym.text, synonym.source)
            for synonym in described["retention.ms"].synonyms
        ] == [
            ("retention.ms", "1", Source.TOPIC),
            ("log.retention.minutes", "5", Source.STATIC_BROKER),
            ("log.retention.ms", "604800000", Source.DEFAULT),
        ]

    def test_values_are_written_as_kafka_writes_them(self) -> None:
        described = {setting.name: setting for setting in Broker().describe()}
        assert described["auto.create.topics.enable"].text == "true"
        assert described["group.consumer.assignors"].text == "uniform,range"
        assert described["log.cleaner.io.max.bytes.per.second"].text == "1.7976931348623157E308"
        assert described["log.cleaner.min.cleanable.ratio"].text == "0.5"
        assert described["broker.rack"].text is None

    def test_every_default_can_be_read_back_from_its_text(self) -> None:
        for declared in (Broker.declared, Topic.declared):
            for about in declared.values():
                text = about.text(about.default)
                if text is not None:
                    assert about.parse(text) == about.default

    def test_every_setting_is_explained_and_typed_as_declared(self) -> None:
        for about in (*Broker.declared.values(), *Topic.declared.values()):
            assert about.doc.endswith("."), about.name
            assert "_" not in about.name
        kinds = {name: about.kind for name, about in Broker.declared.items()}
        assert kinds["log.retention.ms"] is Kind.LONG
        assert kinds["log.retention.hours"] is Kind.INT
        assert kinds["offsets.topic.replication.factor"] is Kind.SHORT
        assert kinds["log.cleanup.policy"] is Kind.LIST
        assert kinds["client.quota.callback.class"] is Kind.CLASS

    def test_only_what_can_change_may_be_changed(self) -> None:
        Broker.check_change({"log.segment.bytes": "1000"}, Scope.CLUSTER)
        with pytest.raises(InvalidSetting, match="cannot be changed while the broker runs"):
            Broker.check_change({"log.dirs": "/a"}, Scope.BROKER)
        with pytest.raises(InvalidSetting, match="at least 14"):
            Broker.check_change({"log.segment.bytes": "1"}, Scope.CLUSTER)

    def test_help_tells_what_has_an_effect(self) -> None:
        text = reference.help_text()
        assert "log.segment.bytes  int, default 1073741824\n    Size at which" in text
        assert "num.io.threads" not in text

    def test_the_reference_page_is_fresh(self) -> None:
        assert REFERENCE.read_text("utf-8") == reference.reference_page(), "run `make docs`"


class TestListeners:
    def test_listeners_are_parsed(self) -> None:
        plain, tls = parse_listeners("PLAINTEXT://0.0.0.0:9092, ssl://[::1]:0")
        assert (plain.name, plain.protocol, plain.host, plain.port) == (
            "PLAINTEXT",
            "PLAINTEXT",
            "0.0.0.0",
            9092,
        )
        assert (tls.name, tls.host, tls.port) == ("SSL", "::1", 0)
        assert str(tls) == "SSL://[::1]:0"
        assert parse_listeners("PLAINTEXT://:9092")[0].host == ""

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "the form NAME://host:port, not ''"),
            ("localhost:9092", "the form NAME://host:port"),
            ("PLAINTEXT://localhost", "the form NAME://host:port"),
            ("PLAINTEXT://a:9092,", "the form NAME://host:port, not ''"),
            ("PLAINTEXT://::1:9092", "the form NAME://host:port"),
            ("PLAINTEXT://a:65536", "from 0 to 65535"),
            ("PLAINTEXT://a:-1", "from 0 to 65535"),
            ("INSIDE://a:9092", "no protocol for INSIDE"),
            ("PLAINTEXT://a:1,PLAINTEXT://b:2", "two listeners have the name PLAINTEXT"),
        ],
    )
    def test_a_wrong_listener_is_told(self, text: str, problem: str) -> None:
        with pytest.raises(InvalidSetting, match=re.escape(problem)):
            parse_listeners(text)

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ({"listeners": "SSL://:9092"}, "listeners: SSL://:9092 needs SSL, which is not in"),
            ({"listeners": "x"}, "listeners: a listener must have the form"),
            (
                {
                    "listeners": "PLAINTEXT://:9092,IN://:9092",
                    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,IN:PLAINTEXT",
                },
                "listeners: two listeners have the same address",
            ),
            (
                {"listener.security.protocol.map": "IN"},
                "listener.security.protocol.map: a protocol",
            ),
            ({"listener.security.protocol.map": "IN:TLS"}, "the protocol must be one of"),
            ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "has no host"),
            ({"advertised.listeners": "SSL://a:9092"}, "no listener of that name"),
            (
                {"listeners": "CONTROLLER://:1", "controller.listener.names": "CONTROLLER"}
                | {"listener.security.protocol.map": "CONTROLLER:PLAINTEXT"},
                "at least one listener for clients",
            ),
            ({"process.roles": "controller"}, "process.roles: there are no separate controllers"),
            ({"queued.max.request.bytes": "5"}, "queued.max.request.bytes: must be -1 or at least"),
        ],
    )
    def test_settings_that_do_not_fit_together_are_told(
        self, given: dict[str, str], problem: str
    ) -> None:
        with pytest.raises(InvalidSetting, match=re.escape(problem)):
            Broker.read(given)

    def test_a_name_of_ones_own_has_the_protocol_of_the_map(self) -> None:
        given = {
            "listeners": "INSIDE://10.0.0.1:9092,OUTSIDE://:9093",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
            "advertised.listeners": "OUTSIDE://example.org:9093,INSIDE://10.0.0.1:9092",
        }
        broker = Broker.read(given)
        assert [listener.name for listener in broker.listening()] == ["INSIDE", "OUTSIDE"]
        assert [listener.host for listener in broker.advertising()] == ["example.org", "10.0.0.1"]
        assert Broker().advertising() == ()


class TestHonesty:
    """A setting is declared without effect if and only if no code reads it."""

    @staticmethod
    def read_attributes() -> set[str]:
        found: set[str] = set()
        for path in SOURCE.rglob("*.py"):
            # The core gets values as parameters, and reads no settings.
            if not {"settings", "core"} & set(path.parts):
                found.update(re.findall(r"\.([a-z][a-z0-9_]+)\b", path.read_text("utf-8")))
        return found

    def test_a_setting_has_an_effect_exactly_if_something_reads_it(self) -> None:
        read = self.read_attributes()
        inherited: dict[str, bool] = {}
        for about in Topic.declared.values():
            for name in about.inherits:
                inherited[name] = about.attribute in read
        # The settings classes themselves read these.
        joined = {"listeners", "advertised.listeners", "listener.security.protocol.map"}
        joined |= {"log.dir", "log.dirs", "node.id", "controller.listener.names"}
        joined |= {"inter.broker.listener.name", "security.inter.broker.protocol"}
        joined |= {"coordinator.listen", "coordinator.credentials", "metrics.listeners"}
        wrong = []
        for about in (*Topic.declared.values(), *Broker.declared.values()):
            used = about.attribute in read or inherited.get(about.name) or about.name in joined
            if used != (about.effect is Effect.FULL):
                wrong.append(f"{about.name}: {'read' if used else 'not read'} but {about.effect}")
        assert wrong == []
