"""Groups and subgroups: what holds projects, and whose members have their role in all that is below."""
