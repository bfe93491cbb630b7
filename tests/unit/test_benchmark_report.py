"""How measurements are shown."""

import csv
import json
import xml.etree.ElementTree as ElementTree

import pytest

from statefork.benchmark.measure import Measurement, Sample
from statefork.benchmark.picture import as_svg
from statefork.benchmark.report import as_csv, as_json, as_table
from statefork.benchmark.workloads import make_workload
from statefork.errors import WrongUse


@pytest.fixture
def measurements() -> list[Measurement]:
    quick = Measurement("quick", "kv", is_right=True, survived={"files": True, "shell": False})
    for number, seconds in enumerate((0.3, 0.1, 0.2), 1):
        quick.samples.append(Sample("quick", "kv", number, "snapshot", seconds, 2_000_000))
        quick.samples.append(Sample("quick", "kv", number, "restore", seconds * 2))
    return [quick, Measurement("broken <one>", "kv", failure="no such daemon")]


def test_the_table_shows_medians_sizes_and_what_survived(measurements: list[Measurement]) -> None:
    head, _, quick, broken, _, reason = as_table(measurements).splitlines()
    cells = dict(zip(head.split("|"), quick.split("|"), strict=True))
    assert cells[" snapshot s "] == " 0.200 (0.300) "
    assert cells[" restore s "] == " 0.400 (0.600) "
    assert cells[" snapshot adds MB "] == " 2.00 "
    assert cells[" state right "] == " yes "
    assert (cells[" files "], cells[" shell "], cells[" memory "]) == (" yes ", " no ", " - ")
    assert broken.startswith("| broken <one> | - |")
    assert reason == "broken <one>: no such daemon"


def test_every_sample_is_in_the_csv_in_seconds(measurements: list[Measurement]) -> None:
    rows = list(csv.DictReader(as_csv(measurements).splitlines()))
    assert len(rows) == 6
    assert rows[0] == {
        "backend": "quick",
        "workload": "kv",
        "repeat": "1",
        "operation": "snapshot",
        "seconds": "0.300000",
        "size_bytes": "2000000",
    }


def test_the_json_has_statistics_with_percentiles(measurements: list[Measurement]) -> None:
    quick, broken = json.loads(as_json(measurements))["measurements"]
    assert quick["statistics"]["snapshot"]["p95"] == 0.3
    assert quick["statistics"]["snapshot"]["unit"] == "seconds"
    assert broken["failure"] == "no such daemon"


def test_the_picture_is_valid_svg(measurements: list[Measurement]) -> None:
    measurements[1].samples.append(Sample("broken <one>", "kv", 1, "snapshot", 1.0))
    root = ElementTree.fromstring(as_svg(measurements))
    texts = [node.text for node in root]
    assert texts.count("quick") == 2, "once for times and once for sizes"
    assert texts.count("broken <one>") == 1
    assert {"0.2", "0.4", "2"} <= set(texts), "the medians"
    assert ElementTree.fromstring(as_svg([])) is not None


@pytest.mark.parametrize("text", ["dance", "memhog lots", ""])
def test_an_unknown_workload_is_refused(text: str) -> None:
    with pytest.raises(WrongUse):
        make_workload(text)


def test_the_name_of_a_workload_includes_its_size() -> None:
    assert make_workload("memhog 7").name == "memhog 7"
    assert make_workload("fsgen").name == "fsgen 100"
