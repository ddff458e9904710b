"""The solver itself: presolve, components, the method that suits each; equal parts tied first."""
