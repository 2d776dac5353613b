"""Imports go down only; the layers are in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINT = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"]


def test_imports_go_down_only() -> None:
    done = subprocess.run(LINT, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_that_goes_up_is_found(tmp_path: Path) -> None:
    package = tmp_path / "holdfast"
    layers = ("testing", "cli", "app", "logs", "reloading", "api", "gateway", "agent")
    for name in (*layers, "channels", "models", "tools", "storage", "core"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "models" / "__init__.py").write_text("import holdfast.tools\n")
    (package / "core" / "__init__.py").write_text("import holdfast.agent\n")
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    done = subprocess.run(LINT, cwd=tmp_path, capture_output=True, text=True, check=False, env={"PYTHONPATH": "."})
    assert done.returncode == 1
    assert "holdfast.core is not allowed to import holdfast.agent" in done.stdout
    assert "holdfast.models is not allowed to import holdfast.tools" in done.stdout
