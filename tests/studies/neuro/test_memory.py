"""What the study promises about memory: groups that do not fit are halved, nothing is lost, limits are remembered."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanfold.studies.neuro.memory import DeviceMemory, DoesNotFit, GroupPace, free_memory, in_groups


class Full(Exception):
    """There is no room."""


class Device:
    """Trains numbers, as long as their sum fits."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.groups: list[list[int]] = []

    def train(self, jobs: Sequence[int]) -> list[str]:
        self.groups.append(list(jobs))
        if sum(jobs) > self.room:
            raise Full
        return [f"trained {job}" for job in jobs]


def run(device: Device, jobs: Sequence[int], memory: DeviceMemory, most: int = 1000) -> list[str | DoesNotFit]:
    return in_groups(jobs, lambda job: job, memory, device.train, lambda error: isinstance(error, Full), lambda: most)


@pytest.mark.slow
@given(st.lists(st.integers(1, 30), min_size=1, max_size=40), st.integers(30, 200), st.integers(1, 400))
def test_whatever_fits_alone_is_trained_in_order_however_wrong_the_prediction(
    jobs: list[int], room: int, believed: int
) -> None:
    done = run(Device(room), jobs, DeviceMemory(lambda: believed))
    assert done == [f"trained {job}" for job in jobs]


def test_a_group_that_does_not_fit_is_halved_and_its_size_not_tried_again() -> None:
    device, memory = Device(4), DeviceMemory(lambda: 10**9)
    assert len(run(device, [1] * 16, memory)) == 16
    assert [len(group) for group in device.groups] == [16, 8, 4, 4, 4, 4]
    again = Device(4)
    run(again, [1] * 16, memory)
    assert max(len(group) for group in again.groups) < 8


def test_a_network_that_does_not_fit_alone_is_named_and_the_others_are_trained() -> None:
    done = run(Device(5), [1, 9, 2], DeviceMemory(lambda: 10**9))
    assert done[0] == "trained 1" and done[2] == "trained 2"
    assert isinstance(done[1], DoesNotFit) and "about 9 bytes" in str(done[1])


def test_other_errors_are_not_taken_for_a_lack_of_room() -> None:
    class Broken(Device):
        def train(self, jobs: Sequence[int]) -> list[str]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Broken(5), [1, 2], DeviceMemory(lambda: 100))


def test_what_was_measured_corrects_what_is_predicted() -> None:
    memory = DeviceMemory(lambda: 1000)
    assert memory.fitting([100] * 20) == 9
    memory.measured(100, 300)
    assert memory.fitting([100] * 20) == 3


def test_at_least_one_is_tried_whatever_was_predicted() -> None:
    assert DeviceMemory(lambda: 10).fitting([100, 100]) == 1


def test_groups_are_never_larger_than_asked_for() -> None:
    device = Device(1000)
    run(device, [1] * 10, DeviceMemory(lambda: 10**9), most=4)
    assert [len(group) for group in device.groups] == [4, 4, 2]


@pytest.mark.parametrize("peak", [1, 4, 16, 64])
def test_the_pace_climbs_to_the_size_that_trains_most_networks_a_second(peak: int) -> None:
    pace = GroupPace(8, 64)
    for _ in range(12):
        size = pace.size
        pace.saw(size, size / (1.0 / (1 + abs(size - peak))))
    assert pace.size in (peak // 2, peak, 2 * peak), "it settles, or is just trying a neighbour again"


def test_a_remainder_says_nothing_of_the_pace() -> None:
    pace = GroupPace(8, 64)
    pace.saw(3, 0.001)
    assert pace.size == 8


def test_free_memory_is_a_number_of_bytes() -> None:
    assert free_memory() > 0
