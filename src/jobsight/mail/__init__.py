"""Mail: what Slurm wants to tell a user about a job, with the report of the job.

slurmctld calls ``jobsight mail`` as its MailProg. The command only writes a request into a
directory (queue.py, request.py); the server builds the message (message.py) and sends it
(sender.py), again and again until the mail server has accepted it (worker.py). Start with
worker.py.
"""
