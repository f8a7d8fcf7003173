"""External status checks (endpoints 12 to 18): services that merge requests wait for, and deliveries to them."""
