import os

import pytest
from fake_machine import FakeMachine

from edge_infer.devices.threads import THREADS_VARIABLE, choose_threads, cpu_quota


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(THREADS_VARIABLE, raising=False)


@pytest.fixture
def eight_cores(machine: FakeMachine) -> FakeMachine:
    machine.cpus([[n] for n in range(8)])
    return machine


def test_physical_cores_without_limits(machine: FakeMachine) -> None:
    machine.cpus([[0, 4], [1, 5], [2, 6], [3, 7]])
    plan = choose_threads(root=machine.root, affinity=range(8))
    assert (plan.threads, plan.cpus) == (4, [0, 1, 2, 3])
    assert any("SMT" in reason for reason in plan.reasons)


def test_performance_cores_only(machine: FakeMachine) -> None:
    machine.cpus([[0, 1], [2, 3], [4], [5]])
    machine.write("sys/devices/cpu_core/cpus", "0-3")
    machine.write("sys/devices/cpu_atom/cpus", "4-5")
    plan = choose_threads(root=machine.root, affinity=range(6))
    assert (plan.threads, plan.cpus) == (2, [0, 2])
    # Asked for more: efficiency cores before the siblings of busy ones.
    assert choose_threads(5, root=machine.root, affinity=range(6)).cpus == [0, 2, 4, 5, 1]
    # Confined to efficiency cores: those it is.
    assert choose_threads(root=machine.root, affinity=[4, 5]).cpus == [4, 5]


def test_affinity_bounds(eight_cores: FakeMachine) -> None:
    plan = choose_threads(root=eight_cores.root, affinity=[3, 5, 6])
    assert (plan.threads, plan.cpus) == (3, [3, 5, 6])


@pytest.mark.parametrize(
    ("line", "threads"),
    [
        ("max 100000", 8),
        ("300000 100000", 3),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("90000 50000", 1),
        ("1600000 100000", 8),
        ("max", 8),
    ],
)
def test_v2_quota(eight_cores: FakeMachine, line: str, threads: int) -> None:
    eight_cores.cgroup_v2("/app")
    eight_cores.write("sys/fs/cgroup/app/cpu.max", line)
    assert choose_threads(root=eight_cores.root, affinity=range(8)).threads == threads


def test_v2_smallest_quota_of_all_ancestors(eight_cores: FakeMachine) -> None:
    eight_cores.cgroup_v2("/pod/container")
    eight_cores.write("sys/fs/cgroup/pod/cpu.max", "200000 100000")
    eight_cores.write("sys/fs/cgroup/pod/container/cpu.max", "600000 100000")
    plan = choose_threads(root=eight_cores.root, affinity=range(8))
    assert plan.threads == 2
    assert any("pod/cpu.max" in reason for reason in plan.reasons)


def test_v2_inside_a_container_namespace(eight_cores: FakeMachine) -> None:
    eight_cores.cgroup_v2("/")
    eight_cores.write("sys/fs/cgroup/cpu.max", "150000 100000")
    assert choose_threads(root=eight_cores.root, affinity=range(8)).threads == 1


def test_v2_cgroup_outside_of_the_mount(eight_cores: FakeMachine) -> None:
    eight_cores.cgroup_v2("/../other")
    eight_cores.write("sys/fs/cgroup/cpu.max", "400000 100000")
    assert choose_threads(root=eight_cores.root, affinity=range(8)).threads == 4


@pytest.mark.parametrize(("quota", "threads"), [("-1", 8), ("350000", 3), ("10000", 1)])
def test_v1_quota(eight_cores: FakeMachine, quota: str, threads: int) -> None:
    # As Docker on v1: the mount shows the container's own cgroup.
    eight_cores.cgroup_v1({"cpu,cpuacct": "/docker/abc"}, mounted="/docker/abc")
    eight_cores.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", quota)
    eight_cores.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert choose_threads(root=eight_cores.root, affinity=range(8)).threads == threads


def test_v1_nested_quota(eight_cores: FakeMachine) -> None:
    eight_cores.cgroup_v1({"cpu": "/a/b", "memory": "/m"})
    eight_cores.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "500000")
    eight_cores.write("sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1")
    quota = cpu_quota(eight_cores.root)
    assert quota is not None
    assert quota.cpus == 5.0
    assert quota.source.parent.name == "a"


def test_no_pinning_under_a_shared_quota(eight_cores: FakeMachine) -> None:
    eight_cores.cgroup_v2("/app")
    eight_cores.write("sys/fs/cgroup/app/cpu.max", "200000 100000")
    plan = choose_threads(root=eight_cores.root, affinity=range(8))
    assert plan.cpus == []
    # With the CPUs to itself (a cpuset of the same size), it pins.
    assert choose_threads(root=eight_cores.root, affinity=[2, 3]).cpus == [2, 3]


def test_cpuset(eight_cores: FakeMachine) -> None:
    eight_cores.cgroup_v2("/app")
    eight_cores.write("sys/fs/cgroup/app/cpuset.cpus.effective", "2-4")
    assert choose_threads(root=eight_cores.root, affinity=range(8)).cpus == [2, 3, 4]
    eight_cores.cgroup_v1({"cpuset": "/x"})
    eight_cores.write("sys/fs/cgroup/cpuset/x/cpuset.cpus", "6,7")
    plan = choose_threads(root=eight_cores.root, affinity=range(8))
    assert plan.cpus == [6, 7]
    assert "cpuset: 6-7" in plan.reasons[0]


def test_request_above_the_affinity_names_the_limit(eight_cores: FakeMachine) -> None:
    with pytest.raises(ValueError, match=r"threads is 4, .* 3 CPUs only \(0-1,5\)"):
        choose_threads(4, root=eight_cores.root, affinity=[0, 1, 5])


def test_request_above_the_quota_is_taken_and_reported(eight_cores: FakeMachine) -> None:
    eight_cores.cgroup_v2("/app")
    eight_cores.write("sys/fs/cgroup/app/cpu.max", "200000 100000")
    plan = choose_threads(4, root=eight_cores.root, affinity=range(8))
    assert plan.threads == 4
    assert any("throttle" in reason for reason in plan.reasons)


@pytest.mark.parametrize("bad", [0, -1, True, 2.0])
def test_bad_request(eight_cores: FakeMachine, bad: object) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        choose_threads(bad, root=eight_cores.root, affinity=range(8))  # type: ignore[arg-type]


def test_variable(eight_cores: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, "5")
    assert choose_threads(root=eight_cores.root, affinity=range(8)).threads == 5
    assert choose_threads(2, root=eight_cores.root, affinity=range(8)).threads == 2
    with pytest.raises(ValueError, match=f"{THREADS_VARIABLE} is 5"):
        choose_threads(root=eight_cores.root, affinity=range(4))


@pytest.mark.parametrize("bad", ["0", "-2", "two", "1.5", "²"])
def test_bad_variable(eight_cores: FakeMachine, monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv(THREADS_VARIABLE, bad)
    with pytest.raises(ValueError, match=THREADS_VARIABLE):
        choose_threads(root=eight_cores.root, affinity=range(8))


def test_malformed_quota_names_the_file(eight_cores: FakeMachine) -> None:
    eight_cores.cgroup_v2("/app")
    eight_cores.write("sys/fs/cgroup/app/cpu.max", "many 100000")
    with pytest.raises(ValueError, match=r"app/cpu\.max"):
        choose_threads(root=eight_cores.root, affinity=range(8))


def test_on_this_machine() -> None:
    plan = choose_threads()
    assert 1 <= plan.threads <= len(os.sched_getaffinity(0))
    assert set(plan.cpus) <= os.sched_getaffinity(0)
