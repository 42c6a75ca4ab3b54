"""What a client is told when a request is refused."""


class RequestError(Exception):
    """A request that is not answered with scores; the text goes to the client.

    The text names fields, positions and types, never a value: values are raw ids.
    """

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(text)


def refuse(problems: list[str]) -> None:
    """Refuses a request with all its problems.

    Raises:
        RequestError: status 400, if there are any.
    """
    if problems:
        raise RequestError(400, "; ".join(problems))
