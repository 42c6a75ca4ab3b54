"""Errors that are the user's to mend: they end a command with exit code 2 and one clear message."""


class InputError(Exception):
    """Something in the data or on the command line is wrong; the text says what and where."""


class NotFiniteError(InputError):
    """A loss or a score is NaN or infinite: training has diverged."""


class ConfigError(InputError):
    """The configuration is wrong; ``problems`` holds every fault found, one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))
