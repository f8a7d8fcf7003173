"""The one error of this package, and the bound on how much work one configuration may cause."""


class ConfigError(Exception):
    """The configuration is refused; `errors` are sentences for its author (`yaml_errors`, CI lint)."""

    def __init__(self, *errors: str) -> None:
        super().__init__("\n".join(errors))
        self.errors: tuple[str, ...] = errors


class FilesWanted(Exception):
    """Files of the web have to be fetched before the configuration can be read; `urls` may hold secrets."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        super().__init__("files have to be fetched")
        self.urls = urls


class Budget:
    """What one pipeline's configuration may still cost, in YAML nodes after expansion.

    Aliases, `!reference` and `extends` let a few hundred bytes of text stand for billions of nodes, so each
    of them pays for what it expands to, from one purse for the file and all its includes.
    """

    def __init__(self, nodes: int = 250_000) -> None:
        self.left = nodes

    def spend(self, nodes: int = 1) -> None:
        self.left -= nodes
        if self.left < 0:
            raise ConfigError("The parsed YAML is too big")
