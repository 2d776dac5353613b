"""Makes or renews .venv; called by scripts/setup with a lock file's name and the stamp to leave at the end.

Runs on any Python that Holdfast supports, with nothing installed. Everything that gets installed, the
build backend included, is pinned by hash.
"""

import fcntl
import filecmp
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
BACKEND = VENV / "build"
UNFINISHED = VENV / "unfinished"
"""There while a set-up is under way: an environment that has it can't be trusted and is made anew."""


class SetupFailed(Exception):
    """Its message is for the user."""


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def alone() -> Iterator[None]:
    """One set-up at a time; the others wait. The kernel lets go of the lock however this process ends."""
    with (ROOT / "pyproject.toml").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up is under way; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(what: str, *command: str | Path, python_path: Path | None = None) -> None:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**kept, "PYTHONPATH": str(python_path)} if python_path else kept,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        lines = "\n".join(f"    {line}" for line in done.stdout.strip().splitlines()[-12:])
        raise SetupFailed(f"{what} failed:\n{lines}")


def can_be_renewed() -> bool:
    """Whether the .venv that is there can be built upon: whole, of this very Python, and not moved since."""
    if UNFINISHED.exists() or not PYTHON.exists():
        return False
    settings = dict(line.split(" = ", 1) for line in (VENV / "pyvenv.cfg").read_text().splitlines() if " = " in line)
    made_with = settings.get("version") or settings.get("version_info")  # as venv calls it, and as uv does
    return made_with == platform.python_version() and all(
        stamp.read_text().startswith(f"{ROOT}\n") for stamp in VENV.glob("*.stamp")
    )


def make(uv: str | None) -> None:
    # The real file rather than a link to it: should a newer Python take over the name `python3`, the
    # environment stays whole, and should this Python go, scripts/setup sees that it is gone.
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    if not uv and not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        name = f"python{sysconfig.get_python_version()}-venv"
        raise SetupFailed(f"{base} lacks the venv module: install {name} (Debian, Ubuntu: apt install {name}) or uv.")
    say(f"Setting up {VENV} with Python {platform.python_version()}, once:")
    if VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    UNFINISHED.touch()
    if uv:
        run("Making .venv", uv, "venv", "--quiet", "--no-project", "--allow-existing", "--python", base, VENV)
    else:
        run("Making .venv", base, "-I", "-m", "venv", VENV)


def install(lock: str, uv: str | None) -> None:
    if uv:
        pip: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", PYTHON]
    else:
        pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        if not (VENV / "bin" / "pip").exists():  # an environment that uv made
            run("Adding pip", PYTHON, "-m", "ensurepip")
    locked = (*pip, "--require-hashes", "--requirement")
    run("Installing", *locked, lock)
    # The build backend lies beside the packages, not among them, and is kept: what has been installed
    # can be renewed without a network.
    kept_lock = BACKEND / "requirements-build.lock"
    if not kept_lock.exists() or not filecmp.cmp(kept_lock, ROOT / kept_lock.name, shallow=False):
        shutil.rmtree(BACKEND, ignore_errors=True)
        run("Installing", *locked, kept_lock.name, "--target", BACKEND)
        shutil.copy(ROOT / kept_lock.name, kept_lock)
    editable = ("--no-deps", "--no-build-isolation", "--editable", ROOT)
    run("Installing Holdfast", *pip, *editable, python_path=BACKEND)


def compile_all() -> None:
    """Compile now, and always: where PYTHONDONTWRITEBYTECODE is set, each start would do it over again."""
    command: list[str | Path] = [PYTHON, "-m", "compileall", "-qq", "-j", "0", VENV / "lib", ROOT / "src"]
    subprocess.run(command, cwd=ROOT, check=False)  # fails where a package carries templates that aren't Python


def set_up(lock: str, stamp: str) -> None:
    stamp_file = VENV / f"{lock}.stamp"
    if stamp_file.exists() and stamp_file.read_text() == stamp and can_be_renewed():
        return  # another set-up did it while this one waited
    started = time.monotonic()
    uv = shutil.which("uv")
    if can_be_renewed():
        say(f"Renewing {VENV}:")
    else:
        make(uv)
    UNFINISHED.touch()
    for old in VENV.glob("*.stamp"):
        old.unlink()
    packages = sum("==" in line for line in (ROOT / lock).read_text().splitlines())
    say(f"  installing {packages} packages from {lock} with {'uv' if uv else 'pip'}")
    install(lock, uv)
    say("  compiling")
    compile_all()
    stamp_file.write_text(stamp)
    UNFINISHED.unlink()
    say(f"  done in {time.monotonic() - started:.0f} s")


def main() -> int:
    lock, stamp = sys.argv[1:]
    try:
        with alone():
            set_up(lock, stamp)
    except SetupFailed as failure:
        say(str(failure))
        return 1
    except OSError as error:
        say(f"The set-up failed: {error.strerror or error}: {error.filename or VENV}")
        return 1
    except KeyboardInterrupt:
        say("\nInterrupted; the next set-up starts over.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
