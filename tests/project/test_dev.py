"""The set-up script: one clear line for everything that can be missing, and no work the second time."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the script needs, without an environment."""
    for name in ("dev", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def tools(tmp_path):
    """A PATH with the ordinary POSIX tools and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("sh", "dirname", "cat", "cksum", "rm", "sed", "grep", "pwd", "echo", "mkdir", "chmod", "printf"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def dev(checkout, *arguments, path):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHON", "VIRTUAL_ENV")}
    return subprocess.run(
        ["./dev", *arguments],
        capture_output=True,
        text=True,
        cwd=checkout,
        env={**environment, "PATH": str(path)},
        check=False,
    )


def script(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def assert_one_line(done, message):
    assert done.returncode == 2
    complaints = [line for line in done.stderr.splitlines() if not line.startswith(("dev: making", "dev: installing"))]
    assert len(complaints) == 1, done.stderr
    assert message in complaints[0]


def test_no_python_at_all(checkout, tools):
    assert_one_line(dev(checkout, "test", path=tools), "coset needs Python >= 3.11; found none")


def test_too_old_a_python(checkout, tools):
    script(tools, "python3", 'if [ "$1" = --version ]; then echo "Python 3.9.2"; else exit 1; fi')
    assert_one_line(dev(checkout, "demo", path=tools), "coset needs Python >= 3.11; found Python 3.9.2")


def test_no_venv_module(checkout, tools):
    script(tools, "python3", 'case "$*" in *ensurepip*) exit 1 ;; *) exit 0 ;; esac')
    assert_one_line(dev(checkout, "lint", path=tools), "the Python 'venv' module is missing")


FAKE_VENV = """case "$*" in
*"-m venv"*) mkdir -p .venv/bin; cat > .venv/bin/python <<'END'
#!/bin/sh
case "$*" in *"pip install"*) {install} ;; *) exit 0 ;; esac
END
chmod +x .venv/bin/python ;;
*) exit 0 ;;
esac"""


def test_no_network(checkout, tools):
    failure = 'echo "NewConnectionError: Temporary failure in name resolution"; exit 1'
    script(tools, "python3", FAKE_VENV.format(install=failure))
    assert_one_line(dev(checkout, "test", path=tools), "the package index cannot be reached")
    assert not (checkout / ".venv" / ".coset-stamp").exists()


def test_another_failure_of_the_installation_is_told(checkout, tools):
    script(tools, "python3", FAKE_VENV.format(install='echo "ERROR: the build broke"; exit 1'))
    assert_one_line(dev(checkout, "test", path=tools), "the installation failed: ERROR: the build broke")


def test_the_second_call_does_no_work(checkout, tools):
    script(tools, "python3", FAKE_VENV.format(install="echo x >> installs; exit 0"))
    for _ in range(2):
        assert dev(checkout, "run", "true", path=f"{tools}:/bin:/usr/bin").returncode == 0
    assert (checkout / "installs").read_text() == "x\n"
    # A changed requirement is installed.
    with (checkout / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    dev(checkout, "run", "true", path=f"{tools}:/bin:/usr/bin")
    assert (checkout / "installs").read_text() == "x\nx\n"


def test_the_second_call_takes_under_two_seconds():
    if not (ROOT / ".venv" / ".coset-stamp").exists():
        pytest.skip("this environment was not made by ./dev")
    for _ in range(2):
        start = time.perf_counter()
        done = subprocess.run(["./dev", "run", "true"], cwd=ROOT, capture_output=True, check=False)
        seconds = time.perf_counter() - start
        assert done.returncode == 0
    assert seconds < 2


def test_unknown_tasks_are_refused_with_help(checkout, tools):
    done = dev(checkout, "frobnicate", path=tools)
    assert done.returncode == 2
    assert "unknown task 'frobnicate'" in done.stderr
    assert "./dev demo" in done.stderr
    assert "./dev test" in dev(checkout, "help", path=tools).stdout
