"""docs/threat-model.md: each attack has a test that there is, or is said to be possible and accepted."""

import re

import pytest

from harness import ROOT

pytestmark = pytest.mark.operators

PAGE = ROOT / "docs" / "threat-model.md"
# Names on that page that are no tests: a reason, a setting of Linux, calls, a fuzz target, functions.
NO_TESTS = {"peer_violation", "ptrace_scope", "secure_getenv", "session_decode", "sock_diag", "close_range", "next_number", "take_back"}


def attacks():
    """(line, cells) of each row of a table whose last column is the test."""
    lines, is_of_attacks = PAGE.read_text().splitlines(), False
    for number, line in enumerate(lines, 1):
        if line.startswith("|---"):
            is_of_attacks = lines[number - 2].endswith("| test |")
        elif line.startswith("|") and is_of_attacks and not lines[number].startswith("|---"):
            yield number, [cell.strip() for cell in line.split("|")[1:-1]]
        is_of_attacks &= line.startswith("|")


def there_are():
    """Tests by name, in Rust and Python."""
    sources = [path for pattern in ("crates/**/*.rs", "tests/**/*.rs", "tests/test_*.py") for path in ROOT.glob(pattern) if "target" not in path.parts]
    tests = r"#\[(?:tokio::)?test\](?:\s*#\[[^\]]*\])*\s*fn (\w+)|^def (test_\w+)|fn (\w+)\(\s*\w+ in "
    return {name for path in sources for found in re.findall(tests, path.read_text(), re.MULTILINE) for name in found if name}


def test_each_attack_has_a_test_or_is_accepted():
    rows = list(attacks())
    assert len(rows) > 60
    # "the same": as the attack above.
    answered = re.compile(r"`\w+_\w+`|the same|test_\w+\.py|conformance\.rs")
    bare = [(number, cells[0]) for number, cells in rows if not answered.search(cells[-1]) and "**possible, accepted**" not in cells[1]]
    assert not bare, bare


def test_each_test_that_is_named_is_there():
    named = set(re.findall(r"`([a-z]\w*_\w+)`", PAGE.read_text())) - NO_TESTS
    assert len(named) > 100 and named <= there_are(), named - there_are()
