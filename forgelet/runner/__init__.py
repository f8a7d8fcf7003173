"""The built-in runner: it plays jobs by the runners' protocol, without a shell, so that pipelines come to an end."""
