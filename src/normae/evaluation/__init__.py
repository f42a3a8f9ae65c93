"""Judge a trained run: one study for each kind of data."""
