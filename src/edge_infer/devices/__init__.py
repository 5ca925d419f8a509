"""What this machine is and grants: cores, threads, kernel paths."""
