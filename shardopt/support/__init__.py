"""What every layer may use: the error of users, readers of documents, progress, timings."""
