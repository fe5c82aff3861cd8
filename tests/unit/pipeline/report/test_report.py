"""The report about an archive: what it counts, and a self-contained page (PIPELINE-7)."""

from __future__ import annotations

import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")

from topics.pipeline.errors import PipelineError  # noqa: E402
from topics.pipeline.lake.delta import DeltaLake  # noqa: E402
from topics.pipeline.lake.files import FILE_SCHEMA, Files, Written, by_date, directory_of  # noqa: E402
from topics.pipeline.lake.parquet import ParquetLake  # noqa: E402
from topics.pipeline.report import page, plot  # noqa: E402
from topics.pipeline.report.report import Report, gather  # noqa: E402
from topics.spark.place import Place  # noqa: E402

HOUR = 480_000
NOWHERE = {"url": "http://127.0.0.1:1", "retryTimeoutMs": "0"}


def fill(lake: DeltaLake | ParquetLake, topic: str, hours: list[int], gaps: list[tuple[int, int]]) -> None:
    """An archive with one record in each of these hours, and gaps before them."""
    times = pa.array([hour * 3_600_000_000 for hour in hours], pa.timestamp("us", "UTC"))
    nothing = [pa.nulls(len(hours), FILE_SCHEMA.field(name).type) for name in ("node", "tag", "meta")]
    columns = [pa.array(range(1, len(hours) + 1), pa.int64()), times, *nothing, pa.array(["{}"] * len(hours))]
    columns.append(pa.repeat(pa.scalar(1, pa.int64()), len(hours)))
    files = Files(str(lake.root), FILE_SCHEMA, 0, 1 << 20)
    for date, part in by_date(pa.RecordBatch.from_arrays(columns, schema=FILE_SCHEMA)):
        files.add(f"{lake.prefix}topic={directory_of(topic, lake.hive)}/date={date}/", topic, date, part)
    lost = [Written(None, topic, None, 0, last - first + 1, first, last, 0, 0, "cap") for first, last in gaps]
    lake.commit("app", 0, [*files.close(), *lost], {topic: {"epoch": 1, "seq": len(hours)}})


@pytest.mark.parametrize("kind", [DeltaLake, ParquetLake])
def test_a_report_counts_records_by_hour_and_losses(kind: type[DeltaLake | ParquetLake], tmp_path: Path) -> None:
    fill(kind(Place(tmp_path)), "a:b", [HOUR, HOUR, HOUR + 1, HOUR + 30], [(5, 9)])
    report = gather(Place(tmp_path), NOWHERE, [])
    (of,) = report.topics
    assert (of.topic, of.records, dict(of.hours)) == ("a:b", 4, {HOUR: 2, HOUR + 1: 1, HOUR + 30: 1})
    assert (of.lost, of.losses[0].reason, of.lag) == (5, "cap", None)
    assert abs(of.losses[0].seen_ts - time.time()) < 60
    assert report.trouble is not None
    assert "cannot be reached" in report.trouble
    with pytest.raises(PipelineError, match='holds nothing of topic "other"'):
        gather(Place(tmp_path), NOWHERE, ["other"])
    with pytest.raises(PipelineError, match="there is no archive"):
        gather(Place(tmp_path / "events"), NOWHERE, [])


def test_the_page_is_self_contained_and_describes_what_it_shows(tmp_path: Path) -> None:
    """One self-contained page: no address to load from, every image labelled, every name escaped."""
    fill(DeltaLake(Place(tmp_path)), "orders", [HOUR, HOUR + 2], [(1, 7)])
    report = gather(Place(tmp_path), NOWHERE, [])
    report.trouble, report.server, report.topics[0].lag = None, "the-server", 1234
    report.topics[0].losses[0].reason = "<script>"
    html = page.render(report)
    for loads in ("src=", "href=", "url(", "@import", "http://", "https://", "<script"):
        assert loads not in html
    body = ET.fromstring(html[html.index("<body") : html.index("</html>")])
    images = list(body.iter("svg"))
    assert len(images) == 4, "volume, the topic's row, lag, the topic's gaps"
    for image in images:
        label = image.get("aria-label") or "".join(image.find("title").itertext())  # type: ignore[union-attr]
        assert image.get("role") == "img"
        assert label
    text = "".join(body.itertext())
    for expected in ("1,234", "orders: 1 at 2024-10-04 00:00", "1 to 7: <script>", "Records that the-server has"):
        assert expected in text


def test_an_empty_archive_makes_a_page_too(tmp_path: Path) -> None:
    DeltaLake(Place(tmp_path))
    html = page.render(gather(Place(tmp_path), NOWHERE, []))
    assert "No records yet." in html
    assert "the archive is complete" in html


def test_only_the_newest_hours_are_shown(tmp_path: Path) -> None:
    fill(DeltaLake(Place(tmp_path)), "t", [HOUR, HOUR + 50], [])
    html = page.render(gather(Place(tmp_path), NOWHERE, []), hours_max=10)
    assert plot.when(HOUR + 41) in html
    assert plot.when(HOUR) not in html


@pytest.mark.parametrize(
    ("most", "step", "top"),
    [(0, 1, 1), (1, 1, 1), (4, 1, 4), (5, 2, 6), (17, 5, 20), (999, 500, 1000), (15_200, 5000, 20_000)],
)
def test_grid_lines_are_round_and_few(most: int, step: int, top: int) -> None:
    assert plot.scale(most) == (step, top)


def test_more_topics_than_colours_are_shown_together(tmp_path: Path) -> None:
    from topics.pipeline.report.report import TopicReport

    topics = [TopicReport(f"t{n}", 1, 1, 1) for n in range(plot.COLOURS + 2)]
    for of in topics:
        of.hours[HOUR] = 1
    html = page.render(Report(Place(tmp_path), 0, topics, "s", "no server"))
    assert "3 other topics" in html
    assert "Not known: no server." in html
