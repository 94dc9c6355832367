"""A function of settings as programs call it: flat, typed, documented, and checked."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_type_hints

import gradio as gr
from pydantic import BeforeValidator, ValidationError, create_model

from lab.errors import ConfigError, LabError
from lab.settings import SETTINGS
from visualize.text import visible


def flat(
    function: Callable[..., Any],
    bounds: Mapping[str, tuple[float, float]] | None = None,
    *,
    choices: Mapping[str, Sequence[str]] | None = None,
    without: Iterable[str] = (),
) -> Callable[..., Any]:
    """``function`` as programs call it: a parameter that is a dataclass of settings becomes its fields, each with its
    type, default and description; what comes in is checked against the types; what goes out is JSON. A parameter that
    is a ``gr.Request`` stays out of sight.

    Args:
        bounds: the least and the most of some whole numbers, where that is narrower than their settings say.
        choices: of some own parameters, what there is to choose from.
        without: settings that the function makes itself.

    Raises:
        gr.Error: in a sentence, for whatever the caller can mend.
    """
    hints = get_type_hints(function) | {name: Literal[tuple(some)] for name, some in (choices or {}).items()}
    own, groups, asks, about = [], {}, [], []
    for parameter in inspect.signature(function).parameters.values():
        if is_dataclass(hint := hints[parameter.name]):
            groups[parameter.name] = hint
        elif hint is gr.Request:
            asks.append(parameter.name)
        else:
            own.append(parameter.replace(annotation=hint))
    reported = inspect.getdoc(function)
    for it in own:
        if it.default is not it.empty:
            usual = _usual(it.name, it.default, bounds or {})
            reported = re.sub(rf"\n    {it.name}: .*", lambda line, usual=usual: f"{line[0]}.{usual}", reported)
    taken: dict[str, list[Field]] = {}
    for name, settings in groups.items():
        types = get_type_hints(settings)
        taken[name] = [field for field in fields(settings) if field.name not in without]
        for field in taken[name]:
            how = {"default": field.default, "annotation": types[field.name]}
            own.append(inspect.Parameter(field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, **how))
            about.append(
                f"    {field.name}: {SETTINGS[field.name].doc}{_usual(field.name, field.default, bounds or {})}"
            )
    own.sort(key=lambda parameter: parameter.default is not parameter.empty)  # those that are needed first
    arguments = create_model(
        function.__name__,
        **{it.name: (_as_given(it.annotation), ... if it.default is it.empty else it.default) for it in own},
    )

    async def call(request: gr.Request, *values: Any) -> str:
        try:
            named = zip(own, values, strict=False)  # null: what Gradio's JavaScript client says for "not given"
            asked = {it.name: value for it, value in named if value is not None or it.default is it.empty}
            given = vars(arguments(**asked))
            for name, (low, high) in (bounds or {}).items():
                if not low <= given[name] <= high:
                    raise ConfigError(
                        f"{name} must be a whole number from {low:,} to {high:,} here, not {given[name]:,}."
                    )
            spread = {
                name: settings(**{field.name: given.pop(field.name) for field in taken[name]})
                for name, settings in groups.items()
            }
            return json.dumps(await function(**given, **spread, **dict.fromkeys(asks, request)), ensure_ascii=False)
        except ValidationError as error:
            first = error.errors()[0]
            where, given = ".".join(map(str, first["loc"])), repr(first["input"])
            said = f"{where}: {first['msg']}, not {given[:80]}{'…' * (len(given) > 80)}."
            raise gr.Error(visible(said), print_exception=False) from None
        except LabError as error:
            raise gr.Error(visible(str(error)), print_exception=False) from None

    head, returns, rest = reported.partition("\nReturns:")
    call.__name__ = function.__name__
    call.__doc__ = "\n".join([head.rstrip(), *about, "", returns.strip() + rest])
    whose = inspect.Parameter("request", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=gr.Request)
    call.__signature__ = inspect.Signature([whose, *own], return_annotation=str)
    call.__annotations__ = {it.name: it.annotation for it in (whose, *own)} | {"return": str}
    return call


def _usual(name: str, default: Any, bounds: Mapping[str, tuple[float, float]]) -> str:
    """Words for what a tool's schema leaves out: a number's bounds, and defaults (Gradio omits 0, false and null)."""
    low, high = bounds.get(name, (None, None))
    limits = f" From {low:,} to {high:,} here." if low is not None else ""
    return f"{limits} Default: {json.dumps(default)}."


def _as_given(hint: Any) -> Any:
    """Accept one string or number where several are taken, as ``SamplingParams`` has it."""
    if hint in (tuple[str, ...], tuple[int, ...]):
        return Annotated[hint, BeforeValidator(lambda value: (value,) if isinstance(value, str | int) else value)]
    return hint
