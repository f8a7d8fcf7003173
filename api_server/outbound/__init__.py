"""What the service may call: rules for URLs and addresses, checked on saving and again on connecting."""
