"""Files: written atomically, sealed with checksums, locked between processes."""
