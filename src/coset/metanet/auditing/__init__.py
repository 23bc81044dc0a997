"""What an audit of a reader consists of: networks, moves along their orbit, readings, a search, a result."""
