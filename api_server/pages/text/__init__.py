"""Texts that people wrote as HTML: Markdown and source with colours, rendered by a child process within limits."""
