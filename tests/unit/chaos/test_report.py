"""The report has the picture, the table and the anomalies, and needs nothing but itself."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from tests.chaos.history import NEMESIS
from tests.chaos.report import Report, Timeline
from tests.unit.chaos.stories import Story, log_of


def told() -> Story:
    story = Story()
    story.open("w", "writer")
    story.note(NEMESIS, "info", "leaders", {"t-0": 1})
    story.write("w", 0, 1, 0)
    story.fault("kill <leader>", ticks=200)
    story.write("w", 1, 3, 1)
    story.fault("pause", kind="info")
    story.write("w", 3, 4, 3)
    story.note(NEMESIS, "info", "drain", None)
    return story


def test_a_report_of_a_good_run_says_so(tmp_path: Path) -> None:
    story = told()
    story.final(log_of("w", *range(4)))
    report = Report(story.check(), "A & B")
    text = report.write(tmp_path / "reports" / "chaos.html").read_text()
    assert "no anomalies" in text
    assert "A &amp; B" in text
    assert "kill &lt;leader&gt;" in text
    assert "<leader>" not in text
    assert "http" not in text
    assert "no anomalies" in report.text()


def test_a_report_shows_anomalies() -> None:
    story = told()
    story.final(log_of("w", 0, 1, 3))
    report = Report(story.check())
    assert "<b>lost</b> t-0: w #2" in report.html().replace("\n", "")
    assert "lost in t-0: w #2" in report.text()


def test_the_picture_is_well_formed_and_has_faults_gaps_and_leaders() -> None:
    story = told()
    story.final(log_of("w", *range(4)))
    picture = Timeline(story.check()).svg()
    root = ET.fromstring(picture)
    titles = [found.text or "" for found in root.iter("title")]
    assert any(title.startswith("kill <leader>") for title in titles)
    assert any("without an acknowledgement" in title.replace("\n", " ") for title in titles)
    assert [found.text for found in root.iter("text") if found.get("class") == "small"] == ["1"]


def test_a_run_without_faults_has_a_report() -> None:
    story = Story()
    story.open("w", "writer")
    story.write("w", 0, 1, 0)
    story.final(log_of("w", 0))
    assert "no anomalies" in Report(story.check()).html()
