"""LFS objects that go to a mirror's target before the refs that need them."""
