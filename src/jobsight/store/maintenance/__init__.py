"""TODO store/maintenance"""
