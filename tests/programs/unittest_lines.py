"""Runs test modules of CPython's own test suite and writes one line for each test: OUTCOME NAME.

OUT gets each line as soon as the test is over, so that a run which hangs or crashes still tells which test it was in
("began NAME" without an outcome).
"""

import argparse
import faulthandler
import sys
import unittest

from test import support


class Lines(unittest.TextTestResult):
    """A test's outcome is the worst of its parts: subtests, tearDown and cleanups count as well."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.lines = OPTIONS.out
        self.outcome = None

    def startTest(self, test):
        self.outcome = "ok"
        self.lines.write(f"began {test.id()}\n")
        super().startTest(test)

    def stopTest(self, test):
        self.lines.write(f"{self.outcome} {test.id()}\n")
        super().stopTest(test)

    def addFailure(self, test, problem):
        self.failed(test, "failed")
        super().addFailure(test, problem)

    def addError(self, test, problem):
        self.failed(test, "error")
        super().addError(test, problem)

    def addSubTest(self, test, subtest, problem):
        if problem is not None:
            self.outcome = "failed"
        super().addSubTest(test, subtest, problem)

    def addSkip(self, test, reason):
        self.outcome = "skipped" if self.outcome == "ok" else self.outcome
        super().addSkip(test, reason)

    def addExpectedFailure(self, test, problem):
        self.outcome = "expected-failure"
        super().addExpectedFailure(test, problem)

    def addUnexpectedSuccess(self, test):
        self.outcome = "unexpected-success"
        super().addUnexpectedSuccess(test)

    def failed(self, test, outcome):
        if isinstance(test, unittest.TestCase):
            self.outcome = outcome
        else:  # a class's or a module's own set-up
            self.lines.write(f"{outcome} {test.id()}\n")


def chosen(suite):
    """The tests of `suite` that are named, without those of excluded classes and names."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from chosen(test)
        elif OPTIONS.only and test.id() not in OPTIONS.only:
            continue
        elif not any(word in test.id().split(".") for word in OPTIONS.exclude):
            yield test


def main():
    faulthandler.enable()
    support.use_resources = OPTIONS.resource
    support.verbose = False
    suite = unittest.defaultTestLoader.loadTestsFromNames([f"test.{module}" for module in OPTIONS.module])
    unittest.TextTestRunner(sys.stderr, verbosity=1, resultclass=Lines).run(unittest.TestSuite(chosen(suite)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resource", action="append", default=[], help="what test.support calls so: network, cpu, ...")
    parser.add_argument("--exclude", action="append", default=[], help="a class or a test that is not run")
    parser.add_argument("--only", action="append", help="a test, by its full name; without, all")
    parser.add_argument("out", type=lambda path: open(path, "w", buffering=1))
    parser.add_argument("module", nargs="+")
    OPTIONS = parser.parse_args()
    main()
