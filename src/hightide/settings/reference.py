"""The settings for people: a page of the documentation, and the text of --help."""

from __future__ import annotations

from hightide.settings.broker import Broker
from hightide.settings.declaration import Declaration, DescribedSetting, Effect, Source
from hightide.settings.topic import Topic


def reference_page() -> str:
    """Return the reference of all settings, in Markdown."""
    lines = [
        "# Settings",
        "",
        "<!-- Generated from the declarations by `make docs`; changes here are lost. -->",
        "",
        "Names, types and meanings are Kafka's. A broker reads `server.properties`, then `KAFKA_*`"
        " environment",
        "variables (`KAFKA_LOG_SEGMENT_BYTES` is `log.segment.bytes`; two underscores mean one"
        " underscore,",
        "three a dash), then `--override name=value`; the last one wins.",
        "",
        "*Change* says whether a setting can change while the broker runs. A setting *without"
        " effect* is",
        "accepted so that the file of a Kafka broker works; one *not in this version* needs a"
        " feature that is",
        "missing. At its start the broker logs the settings of both kinds that differ from their"
        " defaults.",
    ]
    for title, settings in (("Topics", Topic), ("Brokers", Broker)):
        lines += ["", f"## {title}", "", "| name | type | default | values | change | meaning |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        lines += [_row(settings.declared[name]) for name in sorted(settings.declared)]
    return "\n".join(lines) + "\n"


def help_text() -> str:
    """Return every broker setting that has an effect, for a terminal."""
    import textwrap

    paragraphs = []
    for about in Broker.declared.values():
        if about.effect is Effect.FULL:
            default = about.text(about.default) or "none"
            text = textwrap.fill(about.doc, 78, initial_indent="    ", subsequent_indent="    ")
            title = f"{about.name}  {about.kind.name.lower()}, default {default}"
            paragraphs.append(f"{title}\n{text}\n")
    return "\n".join(paragraphs)


def _row(about: Declaration) -> str:
    text = about.text(about.default)
    default = "" if not text else f"`{text}`"
    values = ", ".join(f"`{value}`" for value in about.one_of)
    if about.at_least is not None:
        values = f"from {about.at_least}" + (f" to {about.at_most}" if about.at_most else "")
    doc = DescribedSetting(about, None, Source.DEFAULT, ()).doc
    if about.inherits:
        doc += f" Inherits {', '.join(f'`{name}`' for name in about.inherits)}."
    kind = about.kind.name.lower()
    return f"| `{about.name}` | {kind} | {default} | {values} | {about.scope.value} | {doc} |"
