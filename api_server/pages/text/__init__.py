"""Texts that people wrote, as HTML: Markdown, and source with colours, made by a child process within limits."""
