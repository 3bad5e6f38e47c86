"""The command ``shh``: `cli` is its entrance, each other module one subcommand or one thing that several share."""
