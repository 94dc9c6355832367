"""The time that each lesson's runs take: ``python -m docs.record_lesson_times calm``, and ``busy`` beside other work.

The timetables of ``lessons/INSTRUCTOR.md`` are made from it (``lessons/clock.py``).
"""

from __future__ import annotations

import argparse
import json
import threading
import time

from docs.record_reference import measure
from lab.measure.quiet import look
from lab.registry import Engines
from lab.util.machine_info import describe_machine
from lessons.clock import RECORD, STATES
from lessons.course import course


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("state", choices=STATES, help="what the machine is; the record keeps what it found, too")
    state, engines = parser.parse_args().state, Engines(device="cpu")
    engines("mismatched")  # loaded before the clock starts, as on a server that has run a lesson
    gate = look(engines("matched"), threading.Event())
    seconds = {}
    for lesson in course().values():
        began = time.monotonic()
        for preset in (lesson.front.preset, lesson.changed):
            measure(preset, engines)
        seconds[lesson.name] = round(time.monotonic() - began, 1)
        print(f"Lesson {lesson.number}: {seconds[lesson.name]} s", flush=True)
    before = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    found = {"machine": describe_machine("cpu"), "found": gate.sentence if gate else "", "seconds": seconds}
    RECORD.write_text(json.dumps(before | {state: found}, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
