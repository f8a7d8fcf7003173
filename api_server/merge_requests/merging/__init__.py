"""How merge requests are merged and rebased: at once, or later by themselves."""
