"""The package is what setup.cfg says, and layers import downward only."""

import ast
import configparser
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("dpmd", "parallel", "kernels", "models", "perfmodel")
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
    there = {module_name(p.parent) for layer in LAYERS for p in (ROOT / layer).rglob("__init__.py")}
    assert there == listed


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
    for path in sorted((ROOT / layer).rglob("*.py")):
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
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            if not ast.get_docstring(tree):
                missing.append(f"{path.relative_to(ROOT)}")
            for node in tree.body:
                public = isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
                if public and not ast.get_docstring(node):
                    missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not missing, "\n".join(missing)
