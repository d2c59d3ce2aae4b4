"""Names of the code are words that a native engineer would look up."""

import ast
from collections import Counter
from pathlib import Path

import physim

# Words that say nothing without the body that they stand for.
EMPTY = {"of", "at", "beside", "alone", "together", "thin", "turn", "met", "own", "apart"}
TREES = {path: ast.parse(path.read_text()) for path in Path(physim.__file__).parent.rglob("*.py")}


def _named(tree):
    """Functions, classes and the fields of classes."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    yield field.target.id


def test_no_function_class_or_field_has_an_empty_name():
    assert [
        (str(p), name) for p, tree in TREES.items() for name in _named(tree) if name in EMPTY
    ] == []


def test_no_two_public_classes_have_one_name():
    names = Counter(
        node.name
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []
