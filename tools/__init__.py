"""Programs of memlab's maintainers, which make targets run in a clone. They are not in the wheel."""
