"""The settings as people read them: a page of the documentation, and the text of --help."""

from __future__ import annotations

from hightide.settings.broker import Broker
from hightide.settings.declaration import Declared, Described, Effect, Source
from hightide.settings.topic import Topic


def reference_page() -> str:
    """The reference of all settings, in Markdown."""
    lines = [
        "# Settings",
        "",
        "<!-- Made from the declarations by `make docs`; changes here are lost. -->",
        "",
        "Names, types and meanings are Kafka's. A broker reads `server.properties`, then `KAFKA_*`"
        " environment",
        "variables (`KAFKA_LOG_SEGMENT_BYTES` is `log.segment.bytes`; two underscores stand for one"
        " underscore,",
        "three for a dash), then `--override name=value`; the last one counts.",
        "",
        "*Change* says whether a setting can be changed while the broker runs. A setting *without"
        " effect* is",
        "accepted so that a Kafka broker's file can be used; one *not in this version* waits for"
        " its feature.",
        "When it starts, the broker names those that were set to anything but their defaults.",
    ]
    for title, settings in (("Topics", Topic), ("Brokers", Broker)):
        lines += ["", f"## {title}", "", "| name | type | default | values | change | meaning |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        lines += [_row(settings.declared[name]) for name in sorted(settings.declared)]
    return "\n".join(lines) + "\n"


def help_text() -> str:
    """Every setting of a broker that has an effect, for a terminal."""
    import textwrap

    paragraphs = []
    for about in Broker.declared.values():
        if about.effect is Effect.FULL:
            default = about.text(about.default) or "none"
            text = textwrap.fill(about.doc, 78, initial_indent="    ", subsequent_indent="    ")
            title = f"{about.name}  {about.kind.name.lower()}, default {default}"
            paragraphs.append(f"{title}\n{text}\n")
    return "\n".join(paragraphs)


def _row(about: Declared) -> str:
    text = about.text(about.default)
    default = "" if not text else f"`{text}`"
    values = ", ".join(f"`{each}`" for each in about.one_of)
    if about.at_least is not None:
        values = f"from {about.at_least}" + (f" to {about.at_most}" if about.at_most else "")
    doc = Described(about, None, Source.DEFAULT, ()).doc
    if about.inherits:
        doc += f" Inherits {', '.join(f'`{name}`' for name in about.inherits)}."
    kind = about.kind.name.lower()
    return f"| `{about.name}` | {kind} | {default} | {values} | {about.scope.value} | {doc} |"
