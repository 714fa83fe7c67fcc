"""Transport of batches from the node to the server.

Read ``wire`` first (a batch as bytes), then ``spool`` (batches on disk) and ``delivery`` (to the
server). ``http`` and ``tls`` are the small clients of the agent; ``running_server`` is how local
commands find a server and its token.
"""
