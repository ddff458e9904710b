"""What one accelerator takes for whole steps and for single operations, kept as files that
predictions are held against where no accelerator is at hand."""
