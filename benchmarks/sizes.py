"""Sizes of a source tree: files and lines, call chains, classes that train, lone importers, numeric constants.

    python benchmarks/sizes.py src/jointensor                                          # a table
    python benchmarks/sizes.py src/jointensor --list                                   # and the names behind it
    python benchmarks/sizes.py src/jointensor --beside benchmarks/results/sizes.json   # beside an earlier record

Everything is read from syntax trees and nothing is imported, so every version of the package is measured by the same
rules:

lines
    Lines of ``.py`` files by package: the first folder below the root, or ``(top)``. Lines of code are those with a
    token that is neither a docstring nor a comment.
call chains
    A node is a function or a method; functions defined inside it belong to it. An edge is a name or an attribute,
    called or passed on, that resolves to a function of the package. Names resolve by definitions and imports (imports
    inside functions and re-exports too). ``x.m`` resolves in the class of x, its bases and its subclasses, where
    annotations, constructors and ``self`` tell that class; a protocol stands for every class with all its methods.
    Where the class of x is unknown, ``x.m`` resolves only if a single class and its subclasses have an attribute m.
    A class stands for its ``__init__`` and ``__post_init__``. A field that is called stands for the functions that are
    passed where its class is constructed. Functions of ``kernels`` are not followed. Functions
    that call each other in a circle count as one step. ``shortest`` and ``longest`` count the functions on a chain
    from ``--start`` to a call of ``--target`` (or of a value of type ``--target-type``), both ends included.
classes that train
    Classes with a method ``epoch``, ``sweep`` or ``fit``, and their subclasses, without protocols. Those with one of
    the first two, which pass over the entries themselves, are also counted apart. ``sample`` is not among them: in
    every version so far it draws entries or figures, and trains nothing.
modules with a single importer
    Modules, other than ``__init__`` and ``__main__``, that exactly one other module of the package imports.
numeric constants
    Module-level assignments, defaults of arguments and class attributes with a number in them, other than 0, 1, -1
    and 2. Attributes of classes whose name ends in Recipe, Settings, Config or Limits are counted apart, and so are
    numbers in the bodies of functions.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PASSES = {"epoch", "sweep"}
TRAINING_METHODS = {*PASSES, "fit"}
SETTINGS_ENDINGS = ("Recipe", "Settings", "Config", "Limits")
TARGET = "row solve"
COMMON_TYPES = (str, bytes, list, dict, set, tuple, float, Path, np.ndarray, np.random.Generator)
COMMON_ATTRIBUTES = {name for kind in COMMON_TYPES for name in dir(kind)}
"""Attributes of built-in types, paths and arrays (``mean``, ``get``, …): ``x.mean`` says nothing about what x is."""
PLAIN_NUMBERS = {0, 1, -1, 2}
NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
"""Kinds of tokens that make no line of code."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Class:
    """A class: its methods and the names of its bases, resolved."""

    name: str
    node: ast.ClassDef
    methods: dict[str, Function]
    bases: list[str] = field(default_factory=list)


@dataclass
class Module:
    """A module: its tree, and every name that it defines or imports, as a dotted path."""

    name: str
    path: Path
    tree: ast.Module
    names: dict[str, str] = field(default_factory=dict)
    imports: set[str] = field(default_factory=set)


class Package:
    """All modules below a root, with names resolved across them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, Module] = {}
        for path in sorted(root.rglob("*.py")):
            inside = path.relative_to(root.parent).with_suffix("")
            name = ".".join(inside.parts).removesuffix(".__init__")
            self.modules[name] = Module(name, path, ast.parse(path.read_text(encoding="utf-8")))
        self.functions: dict[str, Function] = {}
        self.classes: dict[str, Class] = {}
        for module in self.modules.values():
            self._define(module)
        for module in self.modules.values():
            for node in ast.walk(module.tree):
                self._import(module, node)
        for one in self.classes.values():
            module = self.modules[one.name.rpartition(".")[0]]
            one.bases = [found for base in one.node.bases if (found := self.resolve(module, base)) in self.classes]
        self.children: dict[str, set[str]] = defaultdict(set)
        for one in self.classes.values():
            for base in one.bases:
                self.children[base].add(one.name)

    def _define(self, module: Module) -> None:
        for node in module.tree.body:
            if isinstance(node, Function):
                self.functions[f"{module.name}.{node.name}"] = node
            elif isinstance(node, ast.ClassDef):
                methods = {part.name: part for part in node.body if isinstance(part, Function)}
                self.classes[f"{module.name}.{node.name}"] = Class(f"{module.name}.{node.name}", node, methods)
                self.functions |= {f"{module.name}.{node.name}.{name}": part for name, part in methods.items()}
            else:
                continue
            module.names[node.name] = f"{module.name}.{node.name}"

    def _import(self, module: Module, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in self.modules:
                    module.imports.add(alias.name)
                    module.names[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                at = module.name.split(".")
                base = at if module.path.name == "__init__.py" else at[:-1]
                source = ".".join([*base[: len(base) - node.level + 1], *([source] if source else [])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                if source in self.modules or full in self.modules:
                    module.imports.add(full if full in self.modules else source)
                    module.names[alias.asname or alias.name] = full

    def resolve(self, module: Module, node: ast.AST) -> str | None:
        """The dotted path of a name or attribute of the package, re-exports followed; ``None`` if it is not one."""
        if isinstance(node, ast.Name):
            found = module.names.get(node.id)
        elif isinstance(node, ast.Attribute):
            inner = self.resolve(module, node.value)
            found = f"{inner}.{node.attr}" if inner else None
        elif isinstance(node, ast.Subscript):
            return self.resolve(module, node.value)
        else:
            return None
        return self._defined(found)

    def _defined(self, name: str | None) -> str | None:
        for _ in range(10):  # re-exports of re-exports
            if name is None or name in self.functions or name in self.classes or name in self.modules:
                return name
            owner, _, last = name.rpartition(".")
            if owner not in self.modules or self.modules[owner].names.get(last) in (None, name):
                return None
            name = self.modules[owner].names[last]
        return None

    def ancestors(self, name: str) -> set[str]:
        """A class and all that it inherits from."""
        return {name}.union(*(self.ancestors(base) for base in self.classes[name].bases))

    def descendants(self, name: str) -> set[str]:
        """A class and all that inherit from it."""
        return {name}.union(*(self.descendants(child) for child in self.children[name]))

    def imported(self) -> dict[str, set[str]]:
        """Importers of every module."""
        importers: dict[str, set[str]] = {name: set() for name in self.modules}
        for module in self.modules.values():
            for name in module.imports - {module.name}:
                importers[name].add(module.name)
        return importers


# ------------------------------------------------------------------------------------------------ call chains


class Calls:
    """The static call graph of a package."""

    def __init__(self, package: Package, target: str, target_type: str) -> None:
        self.package, self.target, self.target_type = package, target, target_type
        self.definers: dict[str, set[str]] = defaultdict(set)
        for one in package.classes.values():
            for attribute in {*one.methods, *fields_of(one)}:
                self.definers[attribute].add(one.name)
        self.fields = {name: self._field_types(one) for name, one in package.classes.items()}
        self.passed = self._passed_functions()
        self.edges = {
            name: set(self._called(name, node))
            for name, node in package.functions.items()
            if not name.startswith(f"{package.root.name}.kernels.")
        }

    def _place(self, name: str) -> tuple[Module, Class | None]:
        owner = name.rpartition(".")[0]
        inside = self.package.classes.get(owner)
        return self.package.modules[owner.rpartition(".")[0] if inside else owner], inside

    def _called(self, name: str, node: Function) -> Iterator[str]:
        module, inside = self._place(name)
        local = self._local_types(module, inside, node)
        for part in (part for statement in node.body for part in ast.walk(statement)):
            if isinstance(part, ast.Call) and self._is_target(part.func, module, local):
                yield TARGET
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
                for owner in self._types(part.func.value, module, local):
                    if part.func.attr in set(fields_of(self.package.classes[owner])):
                        yield from self.passed[owner]
            elif isinstance(part, ast.Attribute | ast.Name):
                found = None if first_name(part) in local else self.package.resolve(module, part)
                if found in self.package.functions:
                    yield found
                elif found in self.package.classes:
                    yield from self._methods(self.package.ancestors(found), "__init__", "__post_init__")
                elif isinstance(part, ast.Attribute):
                    yield from self._methods_of(part, module, local)

    def _passed_functions(self) -> dict[str, set[str]]:
        """Functions among the arguments of the constructors of every class."""
        passed: dict[str, set[str]] = defaultdict(set)
        for module in self.package.modules.values():
            for node in ast.walk(module.tree):
                called = self.package.resolve(module, node.func) if isinstance(node, ast.Call) else None
                if called in self.package.classes:
                    given = [*node.args, *(keyword.value for keyword in node.keywords)]
                    for part in (part for one in given for part in ast.walk(one)):
                        found = self.package.resolve(module, part)
                        if found in self.package.functions:
                            passed[called].add(found)
        return passed

    def _is_target(self, called: ast.AST, module: Module, local: dict[str, set[str]]) -> bool:
        types = {name.rpartition(".")[2] for name in self._types(called, module, local)}
        return last_name(called) == self.target or self.target_type in types

    def _methods_of(self, part: ast.Attribute, module: Module, local: dict[str, set[str]]) -> Iterator[str]:
        receivers = self._types(part.value, module, local)
        if receivers:
            family = set().union(*(self.package.ancestors(one) | self.package.descendants(one) for one in receivers))
            yield from self._methods(family | self._conforming(receivers), part.attr)
        elif part.attr not in COMMON_ATTRIBUTES and self._one_family(self.definers[part.attr]):
            yield from self._methods(self.definers[part.attr], part.attr)

    def _methods(self, classes: set[str], *names: str) -> Iterator[str]:
        for owner in classes:
            for name in names:
                if name in self.package.classes[owner].methods:
                    yield f"{owner}.{name}"

    def _one_family(self, classes: set[str]) -> bool:
        return any(classes <= self.package.descendants(top) for top in classes)

    def _conforming(self, classes: set[str]) -> set[str]:
        """Classes with every method of a protocol."""
        wanted = [set(self.package.classes[one].methods) for one in classes if is_protocol(self.package.classes[one])]
        return {
            name
            for name, one in self.package.classes.items()
            if any(methods and methods <= set(one.methods) for methods in wanted)
        }

    def _annotated(self, module: Module, node: ast.AST | None) -> set[str]:
        """Classes of the package that an annotation names, with or without ``None``, quoted or not."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
        if isinstance(node, ast.BinOp):
            return self._annotated(module, node.left) | self._annotated(module, node.right)
        found = self.package.resolve(module, node) if isinstance(node, ast.Name | ast.Attribute) else None
        return {found} if found in self.package.classes else set()

    def _local_types(self, module: Module, inside: Class | None, node: Function) -> dict[str, set[str]]:
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        local = {argument.arg: self._annotated(module, argument.annotation) for argument in arguments}
        if inside and arguments and arguments[0].arg in ("self", "cls"):
            local[arguments[0].arg] = {inside.name}
        for part in ast.walk(node):
            if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
                local.setdefault(part.targets[0].id, set()).update(self._types(part.value, module, local))
            elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                local.setdefault(part.target.id, set()).update(self._annotated(module, part.annotation))
            elif isinstance(part, ast.withitem) and isinstance(part.optional_vars, ast.Name):
                local.setdefault(part.optional_vars.id, set()).update(self._types(part.context_expr, module, local))
        return local

    def _types(self, node: ast.AST, module: Module, local: dict[str, set[str]]) -> set[str]:
        """Classes that an expression can be of, as far as names, annotations and constructors tell."""
        if isinstance(node, ast.Name):
            return local.get(node.id, set())
        if isinstance(node, ast.IfExp):
            return self._types(node.body, module, local) | self._types(node.orelse, module, local)
        if isinstance(node, ast.Attribute):
            return self._attribute_types(node, module, local)
        if isinstance(node, ast.Call):
            found = self.package.resolve(module, node.func)
            if found in self.package.classes:
                return {found}
            called = {found} if found in self.package.functions else set()
            if not called and isinstance(node.func, ast.Attribute):
                called = set(self._methods_of(node.func, module, local))
            return set().union(*(self._returned(name) for name in called))
        return set()

    def _attribute_types(self, node: ast.Attribute, module: Module, local: dict[str, set[str]]) -> set[str]:
        found: set[str] = set()
        for owner in self._types(node.value, module, local):
            for name in self.package.ancestors(owner):
                found |= getattr(self, "fields", {}).get(name, {}).get(node.attr, set())
                if node.attr in self.package.classes[name].methods:  # a property
                    found |= self._returned(f"{name}.{node.attr}")
        return found

    def _returned(self, name: str) -> set[str]:
        module, inside = self._place(name)
        returns = self.package.functions[name].returns
        if inside and last_name(returns) == "Self" if returns else False:
            return {inside.name}
        return self._annotated(module, returns)

    def _field_types(self, one: Class) -> dict[str, set[str]]:
        module = self.package.modules[one.name.rpartition(".")[0]]
        types: dict[str, set[str]] = defaultdict(set)
        for node in one.node.body:
            if isinstance(node, ast.AnnAssign):
                types[last_name(node.target)] |= self._annotated(module, node.annotation)
        for method in one.methods.values():
            local = self._local_types(module, one, method)
            for node in ast.walk(method):
                targets = node.targets if isinstance(node, ast.Assign) else []
                for target in targets:
                    pairs = [(target, node.value)]
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                        pairs = list(zip(target.elts, node.value.elts, strict=False))
                    for left, right in pairs:
                        if isinstance(left, ast.Attribute) and last_name(left.value) == "self":
                            types[left.attr] |= self._types(right, module, local)
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                    types[node.target.attr] |= self._annotated(module, node.annotation)
        return types

    def chains(self, start: str) -> tuple[list[str], list[str]]:
        """The shortest chain from ``start`` to the target, and the longest over circles taken as one step."""
        return self._shortest(start), self._longest(start)

    def _shortest(self, start: str) -> list[str]:
        before: dict[str, str] = {}
        waiting = [start]
        for at in waiting:
            for following in sorted(self.edges.get(at, ())):
                if following not in before and following != start:
                    before[following] = at
                    waiting.append(following)
        if TARGET not in before:
            return []
        chain = [TARGET]
        while chain[0] != start:
            chain.insert(0, before[chain[0]])
        return chain

    def _longest(self, start: str) -> list[str]:
        circle = circles(self.edges, start)
        best: dict[int, list[str]] = {circle[TARGET]: [TARGET]} if TARGET in circle else {}
        by_circle: dict[int, list[str]] = defaultdict(list)
        for name, number in circle.items():
            by_circle[number].append(name)
        for number in sorted(by_circle):  # circles are numbered from the leaves up
            ways = [
                (len(best[circle[after]]), name, circle[after])
                for name in by_circle[number]
                for after in self.edges.get(name, ())
                if circle[after] != number and circle[after] in best
            ]
            if ways:
                _, name, following = max(ways)
                best[number] = [name, *best[following]]
        return best.get(circle[start], [])


def last_name(node: ast.AST) -> str:
    """``c`` of ``a.b.c`` and of ``c``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def first_name(node: ast.AST) -> str:
    """``a`` of ``a.b.c`` and of ``a``."""
    return first_name(node.value) if isinstance(node, ast.Attribute) else last_name(node)


def is_protocol(one: Class) -> bool:
    """Whether a class only declares what others implement."""
    return any(last_name(base) in ("Protocol", "ABC") for base in one.node.bases)


def fields_of(one: Class) -> Iterator[str]:
    """Attributes that are not methods: annotated or assigned in the body, or assigned to ``self`` in a method."""
    for node in one.node.body:
        if isinstance(node, ast.AnnAssign):
            yield last_name(node.target)
        elif isinstance(node, ast.Assign):
            yield from (last_name(target) for target in node.targets)
    for method in one.methods.values():
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and last_name(node.value) == "self":
                yield node.attr


def circles(edges: dict[str, set[str]], start: str) -> dict[str, int]:
    """The strongly connected component of everything that can be reached, numbered from the leaves up (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: dict[str, int] = {}
    work: list[tuple[str, Iterator[str]]] = []
    count = 0

    def enter(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        work.append((name, iter(sorted(edges.get(name, ())))))

    enter(start)
    while work:
        name, following = work[-1]
        for other in following:
            if other not in order:
                enter(other)
                break
            if other not in found:
                low[name] = min(low[name], order[other])
        else:
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[name])
            if low[name] == order[name]:
                while True:
                    member = stack.pop()
                    found[member] = count
                    if member == name:
                        break
                count += 1
    return found


# ------------------------------------------------------------------------------------------------ the other figures


def code_lines(source: str) -> int:
    """Lines with code on them: no docstrings, comments and blank lines."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        for one in getattr(node, "body", None) or () if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str):
                documented.update(range(one.lineno, (one.end_lineno or one.lineno) + 1))
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - documented)


def lines_by_package(package: Package) -> dict[str, dict[str, int]]:
    """Files and lines of each package, the largest first."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: {"files": 0, "lines": 0})
    for module in package.modules.values():
        inside = module.path.relative_to(package.root).parts
        name = inside[0] if len(inside) > 1 else "(top)"
        found[name]["files"] += 1
        found[name]["lines"] += len(module.path.read_text(encoding="utf-8").splitlines())
    return dict(sorted(found.items(), key=lambda item: -item[1]["lines"]))


def classes_with(package: Package, methods: set[str]) -> list[str]:
    """Classes with one of some methods, of their own or inherited."""
    return sorted(
        name
        for name, one in package.classes.items()
        if not is_protocol(one)
        and any(methods & set(package.classes[base].methods) for base in package.ancestors(name))
    )


def single_importers(package: Package) -> list[str]:
    """Modules that one other module imports."""
    return sorted(
        name
        for name, importers in package.imported().items()
        if len(importers) == 1 and package.modules[name].path.name not in ("__init__.py", "__main__.py")
    )


def numbers_in(node: ast.AST | None) -> list[ast.Constant]:
    """Numbers in an expression, other than the plain ones."""
    parts = ast.walk(node) if node is not None else ()
    return [one for one in parts if isinstance(one, ast.Constant) and _is_number(one.value)]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value not in PLAIN_NUMBERS


def numeric_constants(package: Package) -> dict[str, int]:
    """Assignments and defaults with numbers in them, by where they stand, and numbers in bodies of functions."""
    found = dict.fromkeys(("module", "defaults", "classes", "bodies", "settings"), 0)
    for module in package.modules.values():
        for node in module.tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                found["module"] += bool(numbers_in(node.value))
            elif isinstance(node, ast.ClassDef):
                where = "settings" if node.name.endswith(SETTINGS_ENDINGS) else "classes"
                fields = [part for part in node.body if isinstance(part, ast.Assign | ast.AnnAssign)]
                found[where] += sum(bool(numbers_in(part.value)) for part in fields)
        functions = [node for node in ast.walk(module.tree) if isinstance(node, Function)]
        defaults = [default for one in functions for default in (*one.args.defaults, *one.args.kw_defaults)]
        found["defaults"] += sum(bool(numbers_in(default)) for default in defaults)
        found["bodies"] += len({number for one in functions for part in one.body for number in numbers_in(part)})
    return found


def measure(root: Path, start: str, target: str, target_type: str) -> dict[str, Any]:
    """All figures of a source tree."""
    package = Package(root)
    packages = lines_by_package(package)
    shortest, longest = Calls(package, target, target_type).chains(f"{root.name}.{start}")
    constants = numeric_constants(package)
    return {
        "files": sum(one["files"] for one in packages.values()),
        "lines": sum(one["lines"] for one in packages.values()),
        "code_lines": sum(code_lines(one.path.read_text(encoding="utf-8")) for one in package.modules.values()),
        "packages": packages,
        "call_chain": {"shortest": len(shortest), "longest": len(longest), "longest_chain": longest},
        "classes_that_train": classes_with(package, TRAINING_METHODS),
        "classes_that_pass_over_entries": classes_with(package, PASSES),
        "single_importers": single_importers(package),
        "constants": constants,
        "constants_outside_settings": constants["module"] + constants["defaults"] + constants["classes"],
    }


def rows_of(figures: dict[str, Any]) -> dict[str, str]:
    """Figures as lines of a table."""
    rows = {"files": f"{figures['files']:,}", "lines": f"{figures['lines']:,}"}
    rows["lines of code"] = f"{figures['code_lines']:,}"
    rows |= {f"  {name}": f"{one['lines']:,} in {one['files']}" for name, one in figures["packages"].items()}
    chain, constants = figures["call_chain"], figures["constants"]
    return rows | {
        "longest call chain to a row solve": str(chain["longest"]),
        "shortest call chain to a row solve": str(chain["shortest"]),
        "classes that train": str(len(figures["classes_that_train"])),
        "  by epoch or sweep": str(len(figures["classes_that_pass_over_entries"])),
        "modules with a single importer": str(len(figures["single_importers"])),
        "numeric constants outside settings": str(figures["constants_outside_settings"]),
        "  of modules": str(constants["module"]),
        "  defaults of arguments": str(constants["defaults"]),
        "  of other classes": str(constants["classes"]),
        "numeric constants in settings": str(constants["settings"]),
        "numbers in bodies of functions": str(constants["bodies"]),
    }


def show(figures: dict[str, Any], before: dict[str, Any] | None) -> str:
    """A table of one or two columns."""
    now, then = rows_of(figures), rows_of(before) if before else {}
    names = [*now, *(name for name in then if name not in now)]
    width = max(map(len, names)) + 2
    lines = [f"{'':{width}}{'before':>18}{'now':>18}"] if before else []
    for name in names:
        columns = [then.get(name, "–"), now.get(name, "–")] if before else [now[name]]
        lines.append(f"{name:{width}}" + "".join(f"{text:>18}" for text in columns))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", type=Path, help="the package's folder, such as src/jointensor")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--note", default="", help="what was measured, such as a commit, for the file")
    parser.add_argument("--beside", type=Path, help="figures of an earlier run, to show beside these")
    parser.add_argument("--start", default="cli.app.fit", help="function where call chains start")
    parser.add_argument("--target", default="solve_rows", help="function whose calls end call chains")
    parser.add_argument("--target-type", default="RowSolver", help="calls of values of this type end call chains, too")
    parser.add_argument(
        "--list", action="store_true", help="also print the longest chain and the names that are counted"
    )
    given = parser.parse_args()
    figures = measure(given.root.resolve(), given.start, given.target, given.target_type)
    before = json.loads(given.beside.read_text(encoding="utf-8")) if given.beside else None
    print(show(figures, before))
    if given.list:
        for title in ("call_chain", "classes_that_train", "single_importers"):
            names = figures[title]["longest_chain"] if title == "call_chain" else figures[title]
            print(f"\n{title.replace('_', ' ')}\n  " + "\n  ".join(names))
    if given.json:
        text = json.dumps({"measured": given.note, **figures}, indent=2, ensure_ascii=False)
        given.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
