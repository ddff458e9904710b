"""What a plan runs on: clusters, links, measured profiles, the files that describe them."""
