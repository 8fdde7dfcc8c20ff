"""Options of commands, from the functions of the Python interface that do the same: their defaults, and their help.

Both are read from the source: to import it would take seconds.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer

from florilegium.apps.origins.code import layer_folder

F = TypeVar("F", bound=Callable[..., Any])
EMPTY = inspect.Parameter.empty
RUN = "running:run"
"""Whose parameters others mean where their docstrings say "as for"."""


class Parameter(NamedTuple):
    """A parameter of a function of the Python interface.

    Attributes:
        help: the first sentence that its docstring has about it.
        default: its default; ``inspect.Parameter.empty`` if it has none.
    """

    help: str
    default: Any


@cache
def _source(module: str) -> ast.Module:
    return ast.parse((layer_folder("apps") / "api" / f"{module}.py").read_text(encoding="utf-8"))


@cache
def parameters(function: str) -> Mapping[str, Parameter]:
    """Return the parameters of a function of the Python interface, by name.

    Args:
        function: its module in ``apps/api`` and its name, such as "running:compare" or "runs:Run.export".
    """
    module, _, names = function.partition(":")
    node: Any = _source(module)
    for name in names.split("."):
        node = next(one for one in node.body if getattr(one, "name", "") == name)
    arguments = (ast.get_docstring(node) or "").partition("Args:\n")[2].partition("\n\n")[0]
    told: dict[str, str] = {}
    for names, text in re.findall(r"^    ([\w, ]+): ((?:.+\n?)(?:     +.+\n?)*)", arguments, re.MULTILINE):
        sentence = " ".join(text.split()).partition(". ")[0].removesuffix(".")
        told |= dict.fromkeys(names.split(", "), sentence)
    first = node.args.args
    given = dict(zip(first[len(first) - len(node.args.defaults) :], node.args.defaults, strict=True))
    given |= dict(zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True))
    common = {} if function == RUN else parameters(RUN)

    def read(argument: ast.arg) -> Parameter:
        said, default = told.get(argument.arg, ""), given.get(argument)
        help = common[argument.arg].help if said.startswith("as for") else said
        return Parameter(help, EMPTY if default is None else ast.literal_eval(default))

    return {one.arg: read(one) for one in (*first, *node.args.kwonlyargs)}


def mirrored(command: F, functions: Sequence[str]) -> F:
    """Give a command's parameters what they lack of those of ``functions`` with the same names: default and help.

    Parameters of the command are options, unless they are annotated as arguments.

    Args:
        command: the command; its other parameters stay as they are.
        functions: each as for :func:`parameters`; the first that has the parameter counts.
    """
    known = {name: one for function in reversed(functions) for name, one in parameters(function).items()}
    hints, own = get_type_hints(command, include_extras=True), []
    for parameter in inspect.signature(command).parameters.values():
        annotation, default = hints[parameter.name], parameter.default
        if (said := known.get(parameter.name)) is not None:
            kind, *given = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
            switch = (f"--{parameter.name}",) if kind is bool else ()  # without an option that says no
            option = copy.copy(given[0]) if given else typer.Option(*switch)
            option.help = option.help or said.help
            annotation, default = Annotated[kind, option], said.default if default is EMPTY else default
        hints[parameter.name] = annotation
        own.append(
            inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    command.__annotations__ = hints
    command.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return command
