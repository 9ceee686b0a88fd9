"""Lanes opened and closed at random under full flow: a bounded sample. `make stress` runs it for long."""

import pytest

from stress import Round

pytestmark = pytest.mark.stress


def test_every_byte_arrives_whatever_happens(world, bed):
    stream = Round(world, bed, seed=11)
    stream.run(seconds=12)
    stream.finish()
    stats = stream.broker.stats()
    print(stream.describe(), stats)
