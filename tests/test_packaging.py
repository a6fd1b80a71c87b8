"""The package holds all sources, the installed one is what tests import, and layers import downward only."""

import ast
import configparser
import importlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("dpmd", "parallel", "kernels", "models", "perfmodel")
PACKAGES = tuple("dpmd" if layer == "dpmd" else f"dpmd.{layer}" for layer in LAYERS)
#: what each layer may import from
ALLOWED = {
    "dpmd": {"dpmd", "parallel", "kernels", "models", "perfmodel"},
    "parallel": {"parallel", "kernels"},
    "kernels": {"kernels", "models"},
    "models": {"models"},
    "perfmodel": {"perfmodel", "models", "parallel", "kernels"},
}


def config():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def module_name(folder):
    parts = folder.relative_to(ROOT).parts
    return ".".join(parts if parts[0] == "dpmd" else ("dpmd", *parts))


def test_every_package_is_listed():
    listed = set(config()["options"]["packages"].split())
    there = {module_name(path.parent) for path in modules() if path.name == "__init__.py"}
    assert there == listed


def sources():
    """Code and data of the layers: all files but documentation and what Python leaves behind."""
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*"):
            hidden = any(part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts)
            if path.is_file() and not hidden and path.suffix not in {".md", ".png"}:
                yield path.relative_to(ROOT)


def target(path):
    """Where a source lies in the installed package."""
    return path if path.parts[0] == "dpmd" else Path("dpmd", path)


def test_wheel_and_sdist_hold_every_source(tmp_path):
    pytest.importorskip("setuptools", minversion="77", reason="pip install 'setuptools>=77' to build the package")
    copy = tmp_path / "checkout"
    for layer in LAYERS:  # nothing that an earlier build left can help
        shutil.copytree(ROOT / layer, copy / layer, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    code = "from setuptools import build_meta as b; print(b.build_wheel('..')); print(b.build_sdist('..'))"
    built = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    wheel, sdist = (tmp_path / name for name in built.stdout.splitlines() if name.endswith((".whl", ".gz")))

    wanted = set(sources())
    assert len(wanted) > 150
    assert {path.suffix for path in wanted} >= {".py", ".cu", ".cuh", ".dp", ".json", ".toml"}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    missing = sorted(str(path) for path in wanted if str(target(path)) not in names)
    assert not missing, f"not in the wheel: {', '.join(missing)}"
    strange = {name for name in names if not name.startswith(("dpmd/", "dpmd-"))}
    assert not strange, f"the wheel installs {', '.join(sorted(strange))} beside dpmd"
    with tarfile.open(sdist) as archive:
        names = {str(Path(*Path(name).parts[1:])) for name in archive.getnames()}
    missing = sorted(str(path) for path in {*wanted, Path("README.md"), Path("LICENSE")} if str(path) not in names)
    assert not missing, f"not in the sdist: {', '.join(missing)}"


def from_checkout():
    """What a developer has done so that dpmd comes from this checkout, in words, or None."""
    if ROOT in map(Path, map(os.path.realpath, sys.path)):
        return "the checkout is on the path, by PYTHONPATH or python -m pytest"
    source = json.loads(metadata.distribution("dpmd").read_text("direct_url.json") or "{}")
    return "an editable install" if source.get("dir_info", {}).get("editable") else None


def site_packages():
    """Folder of the installed dpmd; skips the test where dpmd comes from this checkout.

    ``.ci/run`` sets DPMD_TEST_INSTALLED, by which the test fails instead.
    """
    reason = from_checkout()
    if reason and "DPMD_TEST_INSTALLED" not in os.environ:
        pytest.skip(f"{reason}: dpmd is not the installed one")
    assert reason is None
    folder = Path(metadata.distribution("dpmd").locate_file(""))
    assert folder in map(Path, (sysconfig.get_path("purelib"), *site.getsitepackages(), site.getusersitepackages()))
    return folder


@pytest.mark.parametrize("process", ["this", "child", "child in the checkout", "ranks"])
def test_dpmd_is_the_installed_one(process, tmp_path, request):
    code = f"from importlib import import_module as i; print(*(i(m).__file__ for m in {PACKAGES}), flush=True)"
    wanted = " ".join(str(Path(site_packages(), *name.split("."), "__init__.py")) for name in PACKAGES)
    program = tmp_path / "where.py"
    program.write_text(code)
    if process == "this":
        assert " ".join(importlib.import_module(name).__file__ for name in PACKAGES) == wanted
    elif process == "ranks":
        pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install '.[mpi]'")
        _, text = request.getfixturevalue("mpi_run")(2, str(program), cwd=ROOT)
        assert text.splitlines() == [wanted] * 2
    else:
        command, folder = (["-c", code], None) if process == "child" else ([str(program)], ROOT)
        done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)
        assert done.stdout.splitlines() == [wanted]


def test_the_installed_sources_are_those_of_the_checkout():
    """A change since the last installation would be left out of the tests."""
    folder = site_packages()
    differ = [str(path) for path in sources() if (folder / target(path)).read_bytes() != (ROOT / path).read_bytes()]
    assert not differ, f"changed since the last pip install '.[test]': {', '.join(differ)}"


def modules(*layers):
    """Paths of the Python files of some layers, or of all."""
    found = []
    for layer in layers or LAYERS:
        files = sorted((ROOT / layer).rglob("*.py"))
        assert len(files) > 5, f"{layer}/ has moved"
        found += files
    return found


def imports_of(path):
    """Layers that a module imports, absolute and relative imports resolved."""
    package = module_name(path.parent).split(".")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{start}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "dpmd":
                yield parts[1] if len(parts) > 1 and parts[1] in LAYERS else "dpmd"


@pytest.mark.parametrize("layer", LAYERS)
def test_layers_import_downward_only(layer):
    for path in modules(layer):
        wrong = set(imports_of(path)) - ALLOWED[layer]
        assert not wrong, f"{path.relative_to(ROOT)} imports from {', '.join(sorted(wrong))}"


def test_every_dependency_says_what_it_is_for():
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    block = re.search(r"install_requires =\n((?:    .*\n)+)", text)[1].splitlines()
    for comment, requirement in zip(block[::2], block[1::2], strict=True):
        assert comment.strip().startswith("#"), requirement
        assert not requirement.strip().startswith("#"), requirement


def test_public_functions_have_docstrings():
    missing = []
    for path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if not ast.get_docstring(tree):
            missing.append(f"{path.relative_to(ROOT)}")
        for node in tree.body:
            public = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
            if public and not ast.get_docstring(node):
                missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not missing, "\n".join(missing)


def test_no_text_presumes_a_release():
    """An extra is installed from a checkout: the name dpmd is on no index yet."""
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    named = re.compile(r"\bdpmd\[(cuda|docs|mpi|test)")
    texts = [*modules(), *tests, ROOT / "README.md", ROOT / "CHANGELOG.md"]
    found = [str(path.relative_to(ROOT)) for path in texts if named.search(path.read_text("utf-8"))]
    assert not found, f"'.[extra]' in the checkout, not 'dpmd[extra]': {', '.join(found)}"
