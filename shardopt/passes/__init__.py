"""One file a pass; what only one of them needs is in the folder of its subject."""
