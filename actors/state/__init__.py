"""The State Protocol: events, the state that they make, and the cell that materializes a stream."""
