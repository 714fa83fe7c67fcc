"""One report object, shown by every place: terminal, page and API say the same."""
