"""What is measured in: servers, and databases, repositories and origins that are filled for them."""
