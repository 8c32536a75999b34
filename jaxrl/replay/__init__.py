"""The replay page: episodes in one HTML file that a browser plays; also of a run while it trains.

`packing` makes arrays small, `drawings` says what an environment shows, `page` writes the file,
`replay` plays the episodes, `server` serves a run. In the browser, `painting.js` reads the arrays
and paints them, `player.js` is the page, `live.js` asks the server.
"""
