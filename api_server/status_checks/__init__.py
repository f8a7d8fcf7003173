"""External status checks (endpoints 12-18): services that gate merge requests, and what is delivered to them."""
