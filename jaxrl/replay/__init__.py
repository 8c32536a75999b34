"""Pages that a browser shows offline: episodes that play, and runs and sweeps with their curves.

`packing` makes arrays small, `drawings` says what an environment shows, `page` writes the file,
`replay` plays the episodes. `live_run` and `live_sweep` know what the page of a folder shows:
`live_log` and `live_trials` read its files, `curve_panels` makes the curves and `live_episodes`
plays episodes. `server` serves the page, and `run_pages` writes it as a report.

In the browser, `painting.js` reads the arrays and paints them, `player.js` plays episodes,
`overview.js` shows what is around them with uPlot's curves, and `live.js` asks the server.
"""
