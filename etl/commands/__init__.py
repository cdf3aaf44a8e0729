"""One module per command or family of commands: settings in, one value out. Prints nothing."""
