"""What is raised where something that the server depends on cannot be used for the moment."""


class Unavailable(Exception):
    """`part` (the database, the object store) does not answer or is full. What raised it has changed nothing."""

    def __init__(self, part: str) -> None:
        super().__init__(f"{part} is unavailable")
