"""coset's studies, a folder for each paper: they import public names of coset only, as a study of anyone would."""
