"""One module per family of commands; each is imported when one of its commands is named."""
