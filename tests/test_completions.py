"""What bash, zsh and fish complete beside the definitions: settings, and the PIDs of programs that the broker knows."""

import json
import os
import subprocess
import sys

import pytest

from harness import Accel
from operators import CLIENT, SERVER
from procs import free_port, until

pytestmark = pytest.mark.operators

# Each prints what it would offer for `shunpike COMMAND <here>`.
SHELLS = {
    "bash": """
source <(shunpike completions bash)
COMP_WORDS=(shunpike $1 "") COMP_CWORD=2 COMP_LINE="shunpike $1 " COMP_POINT=$((10 + ${#1}))
_shunpike_more shunpike "" "$1"
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "fish": """
shunpike completions fish | source
complete -C "shunpike $argv[1] "
""",
    # Outside an editor zsh completes nothing: the two functions that its script names are called.
    "zsh": """
compdef() { : }
eval "$(shunpike completions zsh)"
compadd() { shift; print -l -- "$@" }
[[ $1 == sysctl ]] && _shunpike_settings || _shunpike_pids
""",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_settings_and_pids(world, shell):
    accel, port = Accel(world, "both"), free_port()
    server = accel.server("server", [sys.executable, "-c", SERVER, port]).wait_listening(port)
    client = accel.client("client", [sys.executable, "-c", CLIENT, port], stdin=subprocess.PIPE)
    client.popen.stdin.write(b"1 100 50\n")
    client.popen.stdin.flush()
    until(lambda: "done" in client.out, client.describe)

    def offers(command):
        script = world.directory / "script"
        script.write_text(SHELLS[shell])
        path = f"{os.path.dirname(world.binary)}:{os.environ['PATH']}"
        env = world.env | {"PATH": path, "SHUNPIKE_SOCKET": str(accel.broker.socket)}
        result = subprocess.run([shell, script, command], env=env, capture_output=True, text=True, timeout=30)
        assert result.returncode == 0 and not result.stderr, result
        return {line.split("\t")[0] for line in result.stdout.splitlines()}

    settings = {setting["name"] for setting in json.loads(accel.broker.tool("sysctl", "--json"))["sysctls"]}
    assert len(settings) > 10 and settings <= offers("sysctl")
    pids = {str(server.pid), str(client.pid)}
    for command in ("explain", "revoke"):
        assert pids == {word for word in offers(command) if word.isdigit()}
    client.popen.stdin.close()
    client.finish()
