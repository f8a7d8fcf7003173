"""Identity tokens (`id_tokens`), with which jobs prove to other services who they are: `claims` is what they say,
`keys` signs them, `handlers` shows everybody the keys that verify them."""
