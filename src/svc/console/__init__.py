"""The server side of the web console: its files, and the sessions of browsers. The pages are in `console/`."""
