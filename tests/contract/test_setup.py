"""scripts/setup on a small project of its own: real environments, real pip, and nothing from the network."""

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.timeout(300)  # pip takes its time on a busy machine

BACKEND = '''
"""A build backend that needs nothing: an editable wheel with a command."""
import pathlib, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    files = {
        "tiny.pth": str(pathlib.Path("src").resolve()),
        "tiny-1.dist-info/METADATA": "Metadata-Version: 2.1\\nName: tiny\\nVersion: 1\\n",
        "tiny-1.dist-info/WHEEL": "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        "tiny-1.dist-info/entry_points.txt": "[console_scripts]\\nholdfast = tiny:main\\n",
    }
    files["tiny-1.dist-info/RECORD"] = "".join(f"{name},,\\n" for name in files)
    with zipfile.ZipFile(pathlib.Path(folder) / "tiny-1-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return "tiny-1-py3-none-any.whl"
'''


def make_wheel(folder: Path, name: str, version: str, note: str = "") -> str:
    """A package as a file; returns the line that locks it."""
    files = {
        f"{name}.py": f"version = {version!r}  # {note}\n",
        f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{name}-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {n: base64.urlsafe_b64encode(hashlib.sha256(t.encode()).digest()).decode() for n, t in files.items()}
    record = "".join(f"{n},sha256={digest.rstrip('=')},{len(files[n])}\n" for n, digest in digests.items())
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for each, text in {**files, f"{name}-{version}.dist-info/RECORD": record}.items():
            wheel.writestr(each, text)
    return f"./{path.name} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}  # {name}=={version}\n"


class Project:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "scripts", folder / "scripts")
        (folder / "pyproject.toml").write_text(
            "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
            "[project]\nname = 'tiny'\nversion = '1'\n"
        )
        (folder / "backend.py").write_text(BACKEND)
        (folder / "src" / "tiny").mkdir(parents=True)
        (folder / "src" / "tiny" / "__init__.py").write_text(
            "import os, sys, plant\ndef main(): print(plant.version, os.getcwd(), sys.argv[1:])\n"
        )
        self.lock("1.0")
        (folder / "requirements-build.lock").write_text(make_wheel(folder, "builder", "1.0"))

    def lock(self, version: str) -> None:
        line = make_wheel(self.folder, "plant", version)
        for name in ("requirements.lock", "requirements-telegram.lock"):
            (self.folder / name).write_text(line)
        (self.folder / "requirements-dev.lock").write_text(line + make_wheel(self.folder, "tools", version))

    def start(self, script: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [self.folder / "scripts" / script, *arguments],
            cwd="/",
            # Nothing but this Python, and no uv: what a newcomer has.
            env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, script: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
        with self.start(script, *arguments, **environment) as process:
            out, err = process.communicate()
        return process.returncode, out, err

    def installed(self, module: str) -> str:
        command = [self.folder / ".venv/bin/python", "-c", f"import {module}; print({module}.version)"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "a project").mkdir()
    return Project(tmp_path / "a project")


def test_two_first_starts_make_one_environment_and_later_ones_only_start(project: Project) -> None:
    with project.start("serve", "--port", "1") as first, project.start("serve", "--port", "1") as second:
        said = [first.communicate(), second.communicate()]
    assert [out for out, _ in said] == ["1.0 / ['serve', '--port', '1']\n"] * 2
    (busy, _), (idle, _) = sorted(((err, out) for out, err in said), reverse=True)
    assert busy.startswith(f"Setting up {project.folder}/.venv with Python 3.")
    assert "installing 1 packages from requirements.lock with pip" in busy
    assert idle == "Another set-up is under way; waiting for it.\n"
    assert list(project.folder.glob("src/tiny/__pycache__/*.pyc")), "compiled, whatever the environment says"
    assert list(project.folder.glob(".venv/lib/*/site-packages/__pycache__/plant*.pyc"))

    started = time.monotonic()
    assert project.run("setup", PYTHON="") == (0, "", "")
    assert time.monotonic() - started < 0.5

    project.folder = project.folder.rename(project.folder.with_name("moved"))
    code, out, err = project.run("serve")
    assert (code, out) == (0, "1.0 / ['serve']\n"), "no path of the old place is left"
    assert err.startswith("Setting up")


def test_what_was_interrupted_starts_over_and_what_has_changed_is_renewed(project: Project) -> None:
    with project.start("setup") as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("Setting up")
        while not (project.folder / ".venv" / "unfinished").exists():
            assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr.read().endswith("Interrupted; the next set-up starts over.\n")
    assert process.returncode == 130
    (project.folder / ".venv" / "half-done").touch()
    code, _, err = project.run("setup")
    assert code == 0
    assert err.startswith("Setting up")
    assert not (project.folder / ".venv" / "half-done").exists(), "nobody knows what it lacks, so it is made anew"

    project.lock("2.0")
    code, _, err = project.run("setup")
    assert (code, err.splitlines()[0]) == (0, f"Renewing {project.folder}/.venv:")
    assert (project.installed("plant"), project.installed("tools")) == ("2.0", "")
    assert project.run("setup", "dev")[0] == 0
    assert project.installed("tools") == "2.0"
    assert project.run("setup") == (0, "", ""), "what is there to test with is there to serve with"

    (project.folder / "builder-1.0-py3-none-any.whl").unlink()
    project.lock("2.5")
    assert project.run("setup")[0] == 0
    assert project.installed("tools") == "2.5", "an environment stays as large as it was"

    project.lock("3.0")
    make_wheel(project.folder, "plant", "3.0", "not what was locked")
    code, _, err = project.run("setup")
    assert code == 1
    assert "Installing failed:" in err
    assert "DO NOT MATCH THE HASHES" in err
    assert "Traceback" not in err


WITHOUT_ENSUREPIP = (
    "import runpy, sys; del sys.argv[0]; sys.modules['ensurepip'] = None; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)


@pytest.mark.parametrize(
    ("stand_in", "sentence"),
    [
        pytest.param("exit 1", "Holdfast needs Python 3.11, 3.12 or 3.13: install one, ", id="too old"),
        pytest.param(
            f'[ "$1" = -c ] && echo 3.11.0 && exit; shift 2; exec {sys.executable} -c "{WITHOUT_ENSUREPIP}" "$@"',
            " lacks the venv module: install python3.",
            id="without venv",
        ),
    ],
)
def test_a_python_that_does_not_suit_gets_one_sentence(
    project: Project, tmp_path: Path, stand_in: str, sentence: str
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "dirname", "cat", "tail", "cksum"):
        (programs / name).symlink_to(shutil.which(name) or name)
    (programs / "python3").write_text(f"#!/bin/sh\n{stand_in}\n")
    (programs / "python3").chmod(0o755)
    code, _, err = project.run("setup", PATH=str(programs), PYTHON="")
    assert code == 1
    assert sentence in err
    assert err.count("\n") == 1


def test_an_unknown_argument_gets_one_sentence(project: Project) -> None:
    assert project.run("setup", "everything") == (
        2,
        "",
        "scripts/setup knows 'telegram' and 'dev', not 'everything'.\n",
    )
