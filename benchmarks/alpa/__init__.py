"""The models and experiments of Alpa (OSDI'22, arXiv 2201.12023, section 8), planned by
shardopt."""
