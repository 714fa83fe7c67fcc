"""The commands of SAMS and petricore, with their documented options.

Start with :mod:`common`, which the server commands share: :mod:`aggregator`,
:mod:`post_receiver`, :mod:`software_updater`, :mod:`software_extractor` and :mod:`registrant`.
:mod:`collector` (SAMS) and :mod:`jobs_exporter` (petricore) run on compute nodes and import only
what an agent needs.
"""
