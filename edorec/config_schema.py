"""The keys a configuration may hold, read off the section classes, and what each of them takes.

A key path is a tuple of strings; ``*`` stands for a name of the user's choice (a feature, a task),
``[]`` for an item of a list.
"""

import functools
import operator
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from edorec.sections import Section

Path = tuple[str | int, ...]
ANY_NAME = "*"
ANY_ITEM = "[]"

_WORDS = {
    str: ("text", "texts"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
}


@dataclass(frozen=True)
class Key:
    """One place of the configuration.

    Attributes:
        path: from the root, with ``*`` for names of the user's choice and ``[]`` for items.
        annotation: the Python type it takes.
        field: its field; None for an entry below a ``*``.
    """

    path: tuple[str, ...]
    annotation: Any
    field: FieldInfo | None

    @property
    def sections(self) -> tuple[type[Section], ...]:
        """The section classes that may be here, none for a value or a mapping of names."""
        found = (as_section(member) for member in _members(self.annotation))
        return tuple(section for section in found if section)

    @property
    def entry(self) -> type[Section] | None:
        """The section class of the entries of a mapping of names, else None."""
        if get_origin(self.annotation) is dict:
            return as_section(get_args(self.annotation)[1])
        return None

    @property
    def item(self) -> type[Section] | None:
        """The section class of the items of a list, else None."""
        if get_origin(self.annotation) is list:
            return as_section(get_args(self.annotation)[0])
        return None

    @property
    def default_choice(self) -> tuple[str, str] | None:
        """(key, value) that chooses among several section classes when none is given."""
        if self.field is None or not isinstance(self.field.discriminator, str):
            return None
        return self.field.discriminator, getattr(self.field.default, self.field.discriminator)

    @property
    def takes_null_word(self) -> bool:
        """Whether the text ``null`` is one of its choices, which YAML reads as no value."""
        return get_origin(self.annotation) is Literal and "null" in get_args(self.annotation)

    def fits(self, path: Path) -> bool:
        """Whether ``path`` is an instance of this key."""
        return len(path) == len(self.path) and all(
            mine in (ANY_NAME, given) or (mine == ANY_ITEM and isinstance(given, int))
            for mine, given in zip(self.path, path, strict=True)
        )


def as_section(annotation: Any) -> type[Section] | None:
    """The annotation itself where it is a section class, else None."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return None


def walk(*sections: type[Section], prefix: tuple[str, ...] = ()) -> Iterator[Key]:
    """Every key below a section, parents before children, in the order of the classes.

    Several sections are alternatives for one place; a key that they share is given once, its type
    the union of theirs.
    """
    fields: dict[str, list[FieldInfo]] = {}
    for section in sections:
        for name, field in section.model_fields.items():
            fields.setdefault(name, []).append(field)
    for name, found in fields.items():
        annotations = tuple(field.annotation for field in found)
        key = Key((*prefix, name), functools.reduce(operator.or_, annotations), found[0])
        yield key
        if key.sections:
            yield from walk(*key.sections, prefix=key.path)
        elif key.entry:
            entry = Key((*key.path, ANY_NAME), key.entry, None)
            yield entry
            yield from walk(key.entry, prefix=entry.path)
        elif key.item:
            item = Key((*key.path, ANY_ITEM), key.item, None)
            yield item
            yield from walk(key.item, prefix=item.path)


def find(root: type[Section], path: Path) -> Key | None:
    """The key that ``path`` is an instance of, None where the schema has none."""
    return next((key for key in walk(root) if key.fits(path)), None)


def wanted(root: type[Section], path: Path) -> str:
    """What the place ``path`` takes, in words; an item of a list is answered by its list's type."""
    if not path:
        return "a mapping with the keys " + ", ".join(root.model_fields)
    if isinstance(path[-1], int):
        outer = find(root, path[:-1])
        lists = [] if outer is None else [a for a in _members(outer.annotation) if get_args(a)]
        return describe(get_args(lists[0])[0]) if lists else "another value"
    key = find(root, path)
    return "another value" if key is None else describe(key.annotation, key.field)


def describe(annotation: Any, field: FieldInfo | None = None) -> str:
    """A type and its bounds in words, such as ``a whole number >= 1 or null``."""
    members = [member for member in _members(annotation) if member is not type(None)]
    if all(get_origin(member) is Literal for member in members):
        choices = [str(value) for member in members for value in get_args(member)]
        text = "one of " + ", ".join(choices)
    elif all(as_section(member) for member in members):
        keys = dict.fromkeys(name for member in members for name in member.model_fields)
        text = "a mapping with the keys " + ", ".join(keys)
    else:
        text = " or ".join(_one(member) for member in members)
    text += _bounds(field)
    return text + " or null" if type(None) in _members(annotation) else text


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation alone."""
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _one(annotation: Any, *, plural: bool = False) -> str:
    arguments = get_args(annotation)
    match get_origin(annotation):
        case origin if origin is Annotated:
            bounds = (_bounds(rule) for rule in arguments[1:] if isinstance(rule, FieldInfo))
            return _one(arguments[0], plural=plural) + "".join(bounds)
        case origin if origin is list:
            section = as_section(arguments[0])
            if section:
                return "a list of mappings with the keys " + ", ".join(section.model_fields)
            items = (_one(a, plural=True) for a in _members(arguments[0]))
            return "a list of " + " or ".join(items)
        case origin if origin is dict:
            return "a mapping of names"
    return _WORDS[annotation][plural]


def _bounds(field: FieldInfo | None) -> str:
    parts = []
    for rule in field.metadata if field else ():
        match rule:
            case Ge():
                parts.append(f">= {rule.ge}")
            case Gt():
                parts.append(f"> {rule.gt}")
            case Le():
                parts.append(f"<= {rule.le}")
            case Lt():
                parts.append(f"< {rule.lt}")
            case MinLen():
                parts.append(f"(at least {rule.min_length})")
    return " " + " and ".join(parts) if parts else ""
