"""Where runs are kept: tables, migrations, the codec of the series, writing and reading."""
