"""One module for each command or family of commands: settings in, one value out.

One module per command or family of commands: settings in, one value out. How it looks is in
`console`.

What `etl doctor` looks at, a module for each part of the world; `diagnose` says in which order.
"""
