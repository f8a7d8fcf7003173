"""Tokens that start pipelines: how they are kept (`handlers`), and what happens when one is used (`firing`)."""
