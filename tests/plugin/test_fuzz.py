"""A fixed small share of `make fuzz` for the plugin's C, under the sanitizers."""

from __future__ import annotations

import struct
import subprocess

from tests.fuzz.mutations import mutations
from tests.fuzz.targets import samples
from tests.plugin.conftest import Compiled


def test_answers_settings_and_names(compiled: Compiled) -> None:
    program = compiled("fuzz", "-fsanitize=address,undefined", "-DWITHOUT_LIBFUZZER")
    inputs = list(mutations("plugin", samples("plugin"), 2000, 4096))
    data = b"".join(struct.pack("=I", len(each)) + each for each in inputs)
    done = subprocess.run([program], input=data, capture_output=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, b"")
    assert int(done.stdout) == len(inputs)
