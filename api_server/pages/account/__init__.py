"""Pages on which somebody looks after her own account."""
