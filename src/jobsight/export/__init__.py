"""Export of software usage to national accounting, in the format of SAMS and SGAS.

Start with :mod:`extract`, which writes the changed runs of a store to XML files; :mod:`records`
computes the record of one run and its XML. :mod:`registrant` sends the files to the accounting
services.
"""
