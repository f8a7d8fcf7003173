"""Parts that only a server for tests has, below /-/testing, if the setting `testing` is on."""

#: The beginning of the paths of the controls.
CONTROLS = "/-/testing/"
#: The User-Agent of the program that starts the server and of its built-in runner, whose requests are not
#: part of the tests.
OWN_AGENT = "forgelet-up"
