"""Identity tokens (`id_tokens`), with which jobs prove their identity to other services: `claims` builds
their contents, `keys` signs them, `handlers` publishes the keys that verify them."""
