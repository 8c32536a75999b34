"""What a container leaves of the machine, read from folders laid out as Linux lays them out."""

import os

import pytest

from jaxrl.core import machine

MIB = 2**20
WHOLE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A function that lays out files {path: text} below the mount, and /proc/self/cgroup."""
    monkeypatch.setattr(machine, "MOUNT", tmp_path / "mount")
    monkeypatch.setattr(machine, "GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "MEMORY_INFO", tmp_path / "meminfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)

    def lay_out(groups, files):
        (tmp_path / "meminfo").write_text(f"MemTotal: {9 * 1024} kB\nMemAvailable: {8 * 1024} kB\n")
        (tmp_path / "cgroup").write_text(groups)
        for name, text in files.items():
            path = tmp_path / "mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return lay_out


def second_version(folder, limit, used, dropped=0, quota="max 100000"):
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{used}\n",
        f"{folder}/memory.stat": f"anon 1\ninactive_file {dropped}\n",
        f"{folder}/cpu.max": f"{quota}\n",
    }


def test_without_a_container_the_machine_is_whole(system):
    system("0::/\n", {})
    expected = (WHOLE, 8 * MIB, 8)
    assert (machine.host_memory(), machine.free_memory(), machine.num_cores()) == expected


def test_a_container_limits_memory_and_cores(system):
    system("0::/box\n", second_version("box", 5 * MIB, 3 * MIB, MIB, "250000 100000"))
    # Of the 3 MiB in use 1 MiB are files that are dropped when memory is wanted.
    expected = 5 * MIB, (5 - 3 + 1) * MIB, 3
    assert (machine.host_memory(), machine.free_memory(), machine.num_cores()) == expected


def test_the_tightest_of_nested_groups_counts(system):
    inner = second_version("outer/inner", "max", 0)
    outer = second_version("outer", 6 * MIB, 5 * MIB, 0, "100000 100000")
    system("0::/outer/inner\n", {**inner, **outer})
    assert (machine.host_memory(), machine.free_memory(), machine.num_cores()) == (6 * MIB, MIB, 1)


@pytest.mark.parametrize("path", ["box", "not/seen/in/here"])
def test_groups_of_the_first_version_limit_as_well(system, path):
    folder = "box/" if path == "box" else ""
    files = {
        f"memory/{folder}memory.limit_in_bytes": f"{4 * MIB}",
        f"memory/{folder}memory.usage_in_bytes": f"{4 * MIB}",
        f"memory/{folder}memory.stat": "cache 0\ntotal_inactive_file 4096\n",
        f"cpu/{folder}cpu.cfs_quota_us": "150000",
        f"cpu/{folder}cpu.cfs_period_us": "100000",
    }
    system(f"5:memory:/{path}\n4:cpu,cpuacct:/{path}\n1:name=systemd:/{path}\n", files)
    assert (machine.host_memory(), machine.free_memory(), machine.num_cores()) == (4 * MIB, 4096, 2)


def test_no_quota_and_no_limit_of_the_first_version_are_none(system):
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "1",
        "memory/memory.stat": "total_inactive_file 0\n",
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
    }
    system("5:memory:/\n4:cpu,cpuacct:/\n", files)
    expected = (WHOLE, 8 * MIB, 8)
    assert (machine.host_memory(), machine.free_memory(), machine.num_cores()) == expected


def test_nothing_left_is_nothing_and_not_less(system):
    system("0::/box\n", second_version("box", MIB, 3 * MIB))
    assert machine.free_memory() == 0
