"""What only a server for tests does: below /-/testing, and only where `testing` is set."""

#: Paths of the controls begin so.
CONTROLS = "/-/testing/"
#: The User-Agent of what starts the server and of its built-in runner, which are no part of what is tested.
OWN_AGENT = "forgelet-up"
