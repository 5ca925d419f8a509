from pathlib import Path

import pytest
from fake_machine import FakeMachine

from edge_infer.devices.topology import parse_cpu_list, read_topology


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0", [0]), ("0-3,8", [0, 1, 2, 3, 8]), ("", []), ("5,1-2\n", [1, 2, 5])],
)
def test_cpu_list(text: str, numbers: list[int]) -> None:
    assert parse_cpu_list(text) == numbers


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "0-99999999"])
def test_bad_cpu_list_names_its_file(text: str) -> None:
    with pytest.raises(ValueError, match="some/file"):
        parse_cpu_list(text, "some/file")


def test_smt_siblings_share_a_core(machine: FakeMachine) -> None:
    machine.cpus([[0, 4], [1, 5], [2, 6], [3, 7]])
    topology = read_topology(machine.root)
    assert topology.physical(range(8)) == [0, 1, 2, 3]
    assert topology.physical([5, 6, 7, 2]) == [2, 5, 7]
    assert not topology.is_hybrid


def test_intel_hybrid_is_told_by_pmu_types(machine: FakeMachine) -> None:
    machine.cpus([[0, 1], [2, 3], [4], [5], [6], [7]])
    machine.write("sys/devices/cpu_core/cpus", "0-3")
    machine.write("sys/devices/cpu_atom/cpus", "4-7")
    topology = read_topology(machine.root)
    assert topology.kinds_from == "PMU type"
    assert topology.physical(range(8), "performance") == [0, 2]
    assert topology.physical(range(8), "efficiency") == [4, 5, 6, 7]


def test_arm_three_tiers_are_told_by_capacity(machine: FakeMachine) -> None:
    # Little cores first, as on phones and RK3588; a prime core above the big ones.
    capacity = {0: 325, 1: 325, 2: 860, 3: 860, 4: 1024}
    machine.cpus([[n] for n in capacity], capacity=capacity)
    topology = read_topology(machine.root)
    assert topology.kinds_from == "capacity"
    assert topology.physical(range(5), "performance") == [2, 3, 4]


def test_frequency_tells_kinds_where_capacity_is_uniform(machine: FakeMachine) -> None:
    cores = [[0, 4], [1, 5], [2, 6], [3, 7]]
    khz = dict.fromkeys([0, 1, 4, 5], 5_100_000) | dict.fromkeys([2, 3, 6, 7], 3_300_000)
    machine.cpus(cores, capacity=dict.fromkeys(range(8), 1024), max_khz=khz)
    topology = read_topology(machine.root)
    assert topology.kinds_from == "maximum frequency"
    assert topology.physical(range(8), "performance") == [0, 1]


def test_favoured_cores_are_not_a_kind(machine: FakeMachine) -> None:
    machine.cpus([[0], [1]], max_khz={0: 5_000_000, 1: 4_700_000})
    assert not read_topology(machine.root).is_hybrid


def test_without_a_topology_every_cpu_is_a_core(machine: FakeMachine) -> None:
    machine.write("sys/devices/system/cpu/online", "0-2")
    assert read_topology(machine.root).physical(range(3)) == [0, 1, 2]


def test_offline_cpus_are_left_out(machine: FakeMachine) -> None:
    machine.cpus([[0], [1], [2]])
    machine.write("sys/devices/system/cpu/online", "0,2")
    assert [cpu.number for cpu in read_topology(machine.root).cpus] == [0, 2]


def test_nothing_at_all(tmp_path: Path) -> None:
    assert read_topology(tmp_path).cpus == ()


def test_this_machine_lists_the_cpus_of_this_process() -> None:
    import os

    assert os.sched_getaffinity(0) <= {cpu.number for cpu in read_topology().cpus}
