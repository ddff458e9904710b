"""What a run tells about itself."""
