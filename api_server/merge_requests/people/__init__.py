"""Who is to look after merge requests, who is to look at them, and who takes part."""
