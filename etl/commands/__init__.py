"""One module for each command or family of commands: settings in, one value out.

One module per command or family of commands: settings in, one value out. How it looks is in
`console`.
"""
