"""The solver below all others: nodes, edges and intervals, and no tensor."""
