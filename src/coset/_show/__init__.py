"""What a person sees: progress, tables, the style of figures, curves as text."""
