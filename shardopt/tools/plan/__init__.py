"""What `shardopt plan` takes, tells while it plans, and does with plan files."""
