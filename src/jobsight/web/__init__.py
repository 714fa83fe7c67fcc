"""Pages for people: the list of runs and the page of one run."""
