"""TODO util"""
