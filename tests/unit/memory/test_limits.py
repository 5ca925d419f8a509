import pytest
from fake_machine import FakeMachine

from edge_infer.memory.limits import RESERVE_BYTES, memory_limit, parse_bytes

MIB = 1 << 20


@pytest.fixture
def host(machine: FakeMachine) -> FakeMachine:
    machine.meminfo(total_mib=16384, available_mib=12000)
    return machine


def v2_group(
    host: FakeMachine, path: str, *, limit: str, current_mib: int, file_mib: tuple[int, int]
) -> None:
    base = f"sys/fs/cgroup{path}"
    host.write(f"{base}/memory.max", limit)
    host.write(f"{base}/memory.current", str(current_mib * MIB))
    inactive, active = (mib * MIB for mib in file_mib)
    host.write(
        f"{base}/memory.stat",
        f"anon 5\nfile 7\ninactive_file {inactive}\nactive_file {active}\nslab 3",
    )


def test_machine_alone(host: FakeMachine) -> None:
    limit = memory_limit(host.root)
    assert limit.source == "MemAvailable"
    assert limit.bytes == 16384 * MIB
    assert limit.available_bytes == 12000 * MIB - RESERVE_BYTES


def test_page_cache_of_the_cgroup_is_reclaimable(host: FakeMachine) -> None:
    host.cgroup_v2("/app")
    v2_group(host, "/app", limit=str(4096 * MIB), current_mib=3900, file_mib=(1500, 2000))
    limit = memory_limit(host.root)
    assert limit.bytes == 4096 * MIB
    assert limit.source.endswith("app/memory.max")
    assert limit.available_bytes == (4096 - 400) * MIB - RESERVE_BYTES


def test_limit_of_an_ancestor_binds(host: FakeMachine) -> None:
    host.cgroup_v2("/pod/app")
    v2_group(host, "/pod/app", limit="max", current_mib=100, file_mib=(0, 0))
    v2_group(host, "/pod", limit=str(2048 * MIB), current_mib=1024, file_mib=(0, 24))
    limit = memory_limit(host.root)
    assert limit.available_bytes == 1048 * MIB - RESERVE_BYTES
    assert limit.source.endswith("pod/memory.max")


def test_memory_high_binds(host: FakeMachine) -> None:
    host.cgroup_v2("/app")
    v2_group(host, "/app", limit=str(4096 * MIB), current_mib=0, file_mib=(0, 0))
    host.write("sys/fs/cgroup/app/memory.high", str(1024 * MIB))
    assert memory_limit(host.root).bytes == 1024 * MIB


def test_the_machine_can_have_less_than_the_cgroup_allows(host: FakeMachine) -> None:
    host.cgroup_v2("/app")
    v2_group(host, "/app", limit=str(64 << 30), current_mib=10, file_mib=(0, 0))
    limit = memory_limit(host.root)
    assert limit.source == "MemAvailable"
    assert len(limit.details) == 2


def test_v1_counts_the_hierarchy(host: FakeMachine) -> None:
    host.cgroup_v1({"memory": "/docker/abc"}, mounted="/docker/abc")
    base = "sys/fs/cgroup/memory"
    host.write(f"{base}/memory.limit_in_bytes", str(1024 * MIB))
    host.write(f"{base}/memory.usage_in_bytes", str(900 * MIB))
    host.write(
        f"{base}/memory.stat",
        f"inactive_file 1\nactive_file 1\ntotal_inactive_file {300 * MIB}\n"
        f"total_active_file {100 * MIB}",
    )
    limit = memory_limit(host.root)
    assert limit.available_bytes == (1024 - 500) * MIB - RESERVE_BYTES


def test_v1_unlimited(host: FakeMachine) -> None:
    host.cgroup_v1({"memory": "/"})
    host.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    assert memory_limit(host.root).source == "MemAvailable"


def test_a_full_cgroup_leaves_nothing(host: FakeMachine) -> None:
    host.cgroup_v2("/app")
    v2_group(host, "/app", limit=str(512 * MIB), current_mib=511, file_mib=(0, 0))
    assert memory_limit(host.root).available_bytes == 0


def test_explicit_limit_needs_no_reserve(host: FakeMachine) -> None:
    limit = memory_limit(host.root, explicit=1000 * MIB)
    assert (limit.source, limit.available_bytes) == ("explicit", 1000 * MIB)
    assert memory_limit(host.root, explicit=1 << 50).source == "MemAvailable"


def test_errors_name_their_source(machine: FakeMachine) -> None:
    with pytest.raises(ValueError, match="MemAvailable"):
        memory_limit(machine.root)
    with pytest.raises(ValueError, match="at least 1"):
        memory_limit(machine.root, explicit=0)
    machine.cgroup_v2("/app")
    machine.write("sys/fs/cgroup/app/memory.max", "lots")
    with pytest.raises(ValueError, match=r"app/memory\.max.*lots"):
        memory_limit(machine.root)
    machine.write("sys/fs/cgroup/app/memory.max", "1000")
    with pytest.raises(ValueError, match=r"memory\.current"):
        memory_limit(machine.root)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (7, 7),
        ("4096", 4096),
        ("100B", 100),
        ("512M", 512 << 20),
        ("512m", 512 << 20),
        ("2GiB", 2 << 30),
        ("2 Gi", 2 << 30),
        ("1500MB", 1_500_000_000),
        ("1kB", 1000),
        ("1.5G", 3 << 29),
        ("1T", 1 << 40),
    ],
)
def test_parse_bytes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("bad", ["", "G", "-1", "1e9", "1.G", "5 apples", "0", 0, -3, True, 1.5])
def test_parse_bytes_refuses(bad: object) -> None:
    with pytest.raises(ValueError, match="size must be"):
        parse_bytes(bad)  # type: ignore[arg-type]
