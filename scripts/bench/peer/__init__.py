"""What others are measured with: programs that are run beside ours."""
