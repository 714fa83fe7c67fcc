"""What ran: rules that name executables, and the naming of all that is stored."""
