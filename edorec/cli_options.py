"""What the subcommands share: options, how errors end a command, how much is shown."""

import errno
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from edorec.errors import InputError

USER_ERROR, INTERRUPTED = 2, 130

Config = Annotated[
    str,
    typer.Option(
        "--config",
        metavar="NAME|FILE",
        help="A YAML file, or the name of one in configs/ (with or without .yaml).",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a value of the file: a dotted key, a value in YAML. May be repeated.",
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Overrides, like --set.", show_default=False),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more.")]


@contextmanager
def reported() -> Iterator[None]:
    """Ends the command with a plain message where the user, not the program, has to act."""
    try:
        yield
    except InputError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USER_ERROR) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        typer.echo(f"there is no room left to write {error.filename or 'on the disk'}", err=True)
        raise typer.Exit(USER_ERROR) from error
    except KeyboardInterrupt as error:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from error


def verbosity_of(quiet: bool, verbose: bool) -> int:
    """-1 quiet, 0 normal, 1 verbose."""
    return int(verbose) - int(quiet)


def path_overrides(paths: Mapping[str, Path | None]) -> list[str]:
    """Overrides that set keys to paths, where they are given."""
    return [f"{key}={json.dumps(str(path))}" for key, path in paths.items() if path is not None]
