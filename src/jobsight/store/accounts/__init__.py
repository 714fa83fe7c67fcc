"""Accounts of people in the store: who they are, how they are signed in, and what was viewed.

``accounts`` has the accounts with their roles, ``sessions`` the browsers that are signed in,
``tokens`` the tokens of users for programs, ``audit`` the views of pages of others,
``coordinators`` who coordinated which account of the scheduler and when. What all this permits is
decided by :mod:`jobsight.access`.
"""
