"""What the passes that choose shardings tell: remarks, explanations, why a budget is too small."""
