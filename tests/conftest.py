"""Hypothesis draws the same examples every time: a failure is a change's fault, not the dice's.

Nor the machine's: how long drawing an example takes is no fault, and Ctrl-C works in the programs that tests start also
where a shell has started the tests in its background, which leaves it ignored.

At the end, what tests measured (`record_property("measured", ...)`) is printed, and whether a browser was missing.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

settings.register_profile("fixed", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fixed")
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter):
    """Printed here and not in the tests, so that it is seen with several workers too."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    for text in [text for report in reports for name, text in report.user_properties if name == "measured"]:
        terminalreporter.write_line(f"measured: {text}")
    skipped = [one for one in terminalreporter.stats.get("skipped", []) if "test_browser" in one.nodeid]
    if skipped:
        why = skipped[0].longrepr[2] if isinstance(skipped[0].longrepr, tuple) else "no browser"
        terminalreporter.write_line(f"{len(skipped)} browser tests skipped: {why}", yellow=True)
