"""Drawing: pure functions from figures to SVG. Geometry by attributes, looks by classes, as the CSP wants it."""
