# SPDX-License-Identifier: Apache-2.0
"""The package in processes: signals, forks, exits, strangers."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import ports
import shardwire as sw

from conftest import until


def free_port() -> str:
    return str(ports.free_port())


CAN_MOUNT = subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0


MEMBER = """
OPTIONS = {}
import sys
import numpy as np
import shardwire as sw

rank, port = int(sys.argv[1]), int(sys.argv[2])
layout = sw.Layout.chunk(0, 2)
with sw.Session.join(rank=rank, world_size=2, local_size=2, port=port, join_timeout=20,
                     **OPTIONS) as session:
    held, wanted = sw.Catalog(rank, 2), sw.Catalog(rank, 2)
    mine, whole = np.arange(500_000.0) + rank * 500_000, np.zeros(1_000_000)
    held.add("weight", "exp_avg", "f64", (1_000_000,), layout, mine)
    wanted.add("weight", "exp_avg", "f64", (1_000_000,), sw.Layout.replicated(), whole)
    with session.publish(held, step=1):
        report = session.restore(wanted, timeout=20, verify="digest").wait()
        session.gather("restored", b"", 20)
    assert np.array_equal(whole, np.arange(1_000_000.0))
    print(report.moved_bytes, report.local_bytes)
"""


def test_two_processes(run):
    port = free_port()
    members = [run(MEMBER, str(rank), port) for rank in range(2)]
    for member in members:
        assert member.end() == (0, "4000000 4000000\n", "")


@pytest.mark.skipif(not CAN_MOUNT, reason="takes a mount namespace of its own")
def test_a_name_that_becomes_known_late(run, tmp_path):
    hosts, switch = tmp_path / "hosts", tmp_path / "nsswitch.conf"
    hosts.write_text("127.0.0.1 localhost\n")
    switch.write_text("hosts: files\n")
    member = run("""
        import ctypes, os, sys
        import shardwire as sw
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.unshare(0x20000) == 0  # CLONE_NEWNS
        private, bind = 0x44000, 0x1000  # MS_REC | MS_PRIVATE, MS_BIND
        assert libc.mount(b"none", b"/", None, private, None) == 0, os.strerror(ctypes.get_errno())
        for mine, theirs in zip(sys.argv[2:], (b"/etc/hosts", b"/etc/nsswitch.conf")):
            assert libc.mount(mine.encode(), theirs, None, bind, None) == 0, os.strerror(ctypes.get_errno())
        with sw.Session.join(rank=1, world_size=2, local_size=2, address="late-master", port=int(sys.argv[1]), join_timeout=30):
            print("joined", flush=True)
        """, port := free_port(), str(hosts), str(switch))
    assert "waits for member 0: cannot resolve host 'late-master'" in member.process.stderr.readline()
    hosts.write_text("127.0.0.1 localhost late-master\n")
    # Now it waits for who listens there.
    assert f"waits for member 0 at 127.0.0.1 port {port}: " in member.process.stderr.readline()
    with sw.Session.join(rank=0, world_size=2, local_size=2, port=int(port), join_timeout=20):
        assert member.end() == (0, "joined\n", "")


def test_a_name_that_stays_unknown():
    with pytest.raises(sw.TimedOut, match=r"member 1 of 2 could not join: cannot resolve host 'never\.\.known'") as caught:
        sw.Session.join(rank=1, world_size=2, address="never..known", port=1, join_timeout=0.1)
    assert caught.value.ranks == [0]
    with pytest.raises(ValueError, match="cannot resolve host ''"):
        sw.Session.join(rank=1, world_size=2, address="", port=1, join_timeout=20)


def test_encrypted_members_and_open_ones(run):
    port = free_port()
    encrypted = MEMBER.replace("OPTIONS = {}", "OPTIONS = {'job_key': b'k' * 32, 'encrypt_payload': True, 'transport': 'tcp'}")
    for member in [run(encrypted, str(rank), port) for rank in range(2)]:
        assert member.end() == (0, "4000000 4000000\n", "")
    port = free_port()
    open_to_all = MEMBER.replace("OPTIONS = {}", "OPTIONS = {'allow_open_network': True}")
    for member in [run(open_to_all, str(rank), port) for rank in range(2)]:
        assert member.end() == (0, "4000000 4000000\n", "")
    with pytest.raises(ValueError, match="job key"):
        sw.Session.join(rank=0, world_size=2, port=int(free_port()), encrypt_payload=True)


def test_a_lost_source_is_a_connection_error(run):
    port = free_port()
    source = run("""
        import sys, time
        import numpy as np, shardwire as sw
        session = sw.Session.join(rank=1, world_size=2, port=int(sys.argv[1]), join_timeout=20)
        held = sw.Catalog(0, 2)
        held.add("t", "", "f64", (4,), sw.Layout.chunk(0, 2), np.zeros(2))
        publication = session.publish(held)
        print("published", flush=True)
        time.sleep(60)
        """, port)
    with sw.Session.join(rank=0, world_size=2, port=int(port), join_timeout=20) as session:
        assert source.line() == "published"
        wanted = sw.Catalog(0, 1)
        memory = np.zeros(4)
        wanted.add("t", "", "f64", (4,), sw.Layout.replicated(), memory)
        restore = session.restore(wanted, timeout=20)
        source.process.kill()
        with pytest.raises((ConnectionError, sw.LayoutMismatch)):
            restore.wait()


WAITS = {
    "join": "sw.Session.join(rank=1, world_size=2, port=int(sys.argv[1]), join_timeout=60)",
    "restore": "session.restore(wanted, timeout=60).wait()",
    "restore with progress": "session.restore(wanted, timeout=60).wait(progress=lambda now: None)",
    "wait_for": "session.restore(wanted, timeout=60).wait_for(60)",
    "gather": "session.gather('never', b'', 60)",
    "barrier": "session.barrier(60)",
    "gather_layouts": "session.gather_layouts(wanted, 60)",
    "await_step": "session.await_step('state', 1, 60)",
    "exchange": "session.exchange(sw.Catalog(0, 2), wanted, timeout=60)",
}


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_every_wait(run, name):
    member_0 = "" if name == "join" else """
session = sw.Session.join(rank=0, world_size=2, port=int(sys.argv[1]))
wanted = sw.Catalog(0, 2)
wanted.add_value("", "never")
"""
    waiting = run(f"""
import signal, sys
import shardwire as sw
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started all this with the signal ignored
{member_0}
try:
    print("waits", flush=True)
    {WAITS[name]}
except KeyboardInterrupt:
    print("interrupted", flush=True)
""", free_port())
    assert waiting.line() == "waits"
    time.sleep(0.3)
    waiting.process.send_signal(signal.SIGINT)
    assert waiting.end() == (0, "interrupted\n", "")


def test_other_threads_run_while_one_waits(job):
    [session] = job(1)
    wanted = sw.Catalog(0, 1)
    wanted.add_value("", "never")
    restore = session.restore(wanted, timeout=60)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pytest.raises, sw.Cancelled, restore.wait)
        for _ in range(100):
            time.sleep(0.001)
        restore.cancel()  # if other threads could not run, the restore would have timed out by now
        waiting.result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_of_fork_is_inert(job):
    [session] = job(1)
    held = sw.Catalog(0, 1)
    held.add("t", "", "f64", (4,), sw.Layout.replicated(), np.arange(4.0))
    publication = session.publish(held)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            session.inventory()
        except sw.InvalidArgument:
            del publication, held
            code = 0
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    received = np.zeros(4)
    wanted = sw.Catalog(0, 1)
    wanted.add("t", "", "f64", (4,), sw.Layout.replicated(), received)
    session.restore(wanted, timeout=20).wait()
    assert list(received) == [0, 1, 2, 3]


def test_a_child_of_fork_exits_in_order(run):
    program = run("""
        import os, sys, warnings
        import numpy as np, shardwire as sw
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks of processes with threads
        session = sw.Session.join(rank=0, world_size=1, port=int(sys.argv[1]), log=lambda level, message: None)
        held = sw.Catalog(0, 1)
        held.add("t", "", "f64", (4,), sw.Layout.replicated(), np.arange(4.0))
        publication = session.publish(held)
        child = os.fork()
        if child:
            status = os.waitpid(child, 0)[1]
            print(status, session.inventory().publishers)
        """, free_port())
    assert program.end() == (0, "0 [Publisher(rank=0, member=0)]\n", "")


def test_a_program_may_end_with_everything_open(run):
    program = run("""
        import sys
        import numpy as np, shardwire as sw
        session = sw.Session.join(rank=0, world_size=1, port=int(sys.argv[1]))
        held, wanted = sw.Catalog(0, 1), sw.Catalog(0, 1)
        held.add("t", "", "f64", (4,), sw.Layout.replicated(), np.zeros(4))
        publication = session.publish(held)
        wanted.add_value("", "never")
        running = session.restore(wanted, timeout=60)
        arena = session.allocate(1 << 20)
        memory = np.frombuffer(arena, dtype=np.uint8)
        cycle = [session, publication, running, held]
        cycle.append(cycle)
        """, free_port())
    assert program.end() == (0, "", "")


# Without a session, nothing between the last line of the program and its end makes the other threads wait.
def test_a_program_may_end_while_threads_call(run):
    program = run("""
        import threading, time
        import numpy as np, shardwire as sw
        held = sw.Catalog(0, 1)
        held.add("t", "", "f64", (4,), sw.Layout.replicated(), np.zeros(4))
        layout = sw.JobLayout([held])
        def call():
            while True:
                sw.totals(layout, layout)
        for _ in range(16):
            threading.Thread(target=call, daemon=True).start()
        time.sleep(0.1)
        """)
    assert program.end() == (0, "", "")


def test_a_program_whose_first_import_is_on_another_thread_ends(run):
    program = run("""
        import sys, threading
        def join():
            import shardwire as sw
            global session
            session = sw.Session.join(rank=0, world_size=1, port=int(sys.argv[1]))
        thread = threading.Thread(target=join)
        thread.start()
        thread.join()
        """, free_port())
    assert program.end() == (0, "", "")


def test_a_program_may_end_while_a_thread_waits(run):
    program = run("""
        import sys, threading, time
        import shardwire as sw
        session = sw.Session.join(rank=0, world_size=1, port=int(sys.argv[1]))
        wanted = sw.Catalog(0, 1)
        wanted.add_value("", "never")
        threading.Thread(target=lambda: session.restore(wanted, timeout=60).wait(), daemon=True).start()
        time.sleep(0.2)
        """, free_port())
    code, out, _ = program.end()
    assert (code, out) == (0, "")


def test_the_import_is_light(run):
    program = run("""
        import sys
        import shardwire
        print([name for name in ("torch", "numpy", "asyncio", "logging", "socket") if name in sys.modules])
        """)
    assert program.end() == (0, "[]\n", "")


def test_free_threaded_builds_are_refused(run):
    program = run("""
        import sys
        sys.abiflags = "t"
        import shardwire
        """)
    code, out, error = program.end()
    assert (code, out) == (1, "") and error.rstrip().splitlines()[-1].startswith("ImportError: shardwire relies on"), error


def test_subinterpreters_are_refused(run):
    program = run("""
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        import shardwire
        other = interpreters.create()
        text = '''
        try:
            import shardwire
        except ImportError as error:
            assert "interpreter" in str(error), error
        else:
            raise AssertionError("imported")
        '''
        import textwrap
        failed = interpreters.run_string(other, textwrap.dedent(text))
        assert failed is None, failed
        print("refused")
        """)
    code, out, error = program.end()
    assert (code, out) == (0, "refused\n"), error


ERRORS = [sw.InvalidArgument, sw.LayoutMismatch, sw.Unsupported, sw.OutOfResources, sw.PeerLost, sw.TimedOut, sw.Cancelled,
          sw.TransportFailed, sw.InternalError, sw.Withdrawn, sw.StepMismatch, sw.Corrupt]


@pytest.mark.parametrize("kind", ERRORS)
def test_errors_survive_pickling(kind):
    error = kind("what happened", [sw.Gap("w", "m", sw.Box((0,), (1,)), 2)], [3, 4])
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind and str(copy) == "what happened"
    assert (copy.code, copy.gaps, copy.ranks, copy.retryable) == (error.code, error.gaps, error.ranks, error.retryable)


def test_errors_are_pythons_own_too(job):
    [session] = job(1)
    wanted = sw.Catalog(0, 1)
    wanted.add("t", "m", "f32", (4,), sw.Layout.replicated(), np.zeros(4, dtype=np.float32))
    with pytest.raises(TimeoutError) as raised:
        session.await_step("state", 1, 0.1)
    assert raised.value.code == "timed_out" and raised.value.retryable and raised.value.report is None
    held = sw.Catalog(0, 1)
    held.add("t", "m", "f32", (4,), sw.Layout.boxes({0: [sw.Box((0,), (3,))]}), np.zeros(3, dtype=np.float32))
    with session.publish(held), pytest.raises(ValueError) as mismatch:
        session.restore(wanted, timeout=20).wait()
    assert mismatch.value.gaps == [("t", "m", ((3,), (1,)), 0)]
    assert isinstance(mismatch.value, sw.LayoutMismatch)
    report = pickle.loads(pickle.dumps(mismatch.value)).report
    assert report == mismatch.value.report and report.seconds.plan > 0


def test_a_store_that_raises_ends_the_join():
    class Broken:
        def put(self, key, value):
            raise KeyError("broken store")

        def get(self, key, timeout):
            raise KeyError("broken store")

    for rank in range(2):
        with pytest.raises(KeyError, match="broken store"):
            sw.Session.join(rank=rank, world_size=2, store=Broken(), join_timeout=10)


def test_messages_go_to_logging(job, caplog):
    with caplog.at_level("INFO", "shardwire"):
        [session] = job(1, log=logging.getLogger("shardwire").log)
        held = sw.Catalog(0, 1)
        held.add_value("", "100%s", 1)
        with session.publish(held, step=3):
            assert until(lambda: any("published" in message for message in caplog.messages))
    assert {(record.levelname, record.threadName) for record in caplog.records} == {("INFO", "shardwire log")}


def test_what_a_session_counts_goes_to_a_function(job):
    updates, threads = [], set()

    def telemetry(*update):
        threads.add(threading.current_thread().name)
        updates.append(update)
        raise ZeroDivisionError  # stops nothing

    before, threading.excepthook = threading.excepthook, lambda raised: None
    try:
        [session] = job(1, telemetry=telemetry)
        held = sw.Catalog(0, 1)
        held.add("t", "", "f64", (4,), sw.Layout.replicated(), np.arange(4.0))
        with session.publish(held, step=3):
            size = ("counter", "shardwire.publication.size", 32.0, {"shardwire.snapshot": "none"})
            assert until(lambda: size in updates), updates
        assert until(lambda: (*size[:2], -32.0, size[3]) in updates), updates
    finally:
        threading.excepthook = before
    assert ("counter", "shardwire.handshake.rejections", 0.0, {"error.type": "bad_key"}) in updates
    assert ("gauge", "shardwire.publication.step", 3.0, {}) in updates
    assert [update[3] for update in updates if update[:2] == ("histogram", "shardwire.session.join.duration")] == [{}]
    assert threads == {"shardwire telemetry"}


LOGGED = """
import CONFIGURED
import sys
import numpy as np
import shardwire as sw

with sw.Session.join(rank=0, world_size=1, port=int(sys.argv[1]), run_id="night") as session:
    held, wanted = sw.Catalog(0, 1), sw.Catalog(0, 1)
    held.add("t", "", "f64", (4,), sw.Layout.replicated(), np.arange(4.0))
    wanted.add("t", "", "f64", (4,), sw.Layout.replicated(), np.zeros(4))
    with session.publish(held):
        session.restore(wanted, timeout=20).wait()
"""
TO_OUTPUT = "logging, sys; logging.basicConfig(stream=sys.stdout, format='%(name)s %(levelname)s %(message)s')"
TO_OUTPUT_ALONE = """logging, sys
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(logging.Formatter('%(name)s %(levelname)s %(message)s'))
logging.getLogger('shardwire').addHandler(handler)
logging.getLogger('shardwire').propagate = False
"""
OF_A_LOGGER_BELOW = "logging, sys; logging.getLogger('shardwire.torch').addHandler(logging.StreamHandler(sys.stdout))"


@pytest.mark.parametrize(("configured", "asked", "levels"), [
    (TO_OUTPUT, "", set()),  # there is no warning
    (TO_OUTPUT + "; logging.getLogger().setLevel(logging.INFO)", "", {"INFO"}),
    (TO_OUTPUT + "; logging.getLogger('shardwire').setLevel(logging.DEBUG)", "", {"DEBUG", "INFO"}),
    (TO_OUTPUT, "info", {"INFO"}),
    (TO_OUTPUT, "debug", {"DEBUG", "INFO"}),
    (TO_OUTPUT + "; logging.getLogger('shardwire').setLevel(logging.ERROR)", "debug", set()),
    (TO_OUTPUT_ALONE, "info", {"INFO"}),
], ids=["warnings", "level of the root", "level of the logger", "variable: info", "variable: debug", "logger before variable",
        "handler of the logger"])
def test_messages_go_to_a_logger_that_has_a_handler(run, configured, asked, levels):
    program = run(LOGGED.replace("CONFIGURED", configured), free_port(), environment={"SHARDWIRE_LOG": asked})
    code, out, error = program.end()
    assert (code, error) == (0, "")
    lines = out.splitlines()
    assert all(line.startswith("shardwire ") for line in lines), out
    assert {line.split()[1] for line in lines} == levels, out
    assert levels == set() or any("INFO member 0 published 'state'" in line for line in lines), out


@pytest.mark.parametrize("configured", ["os", "logging", OF_A_LOGGER_BELOW],
                         ids=["no logging", "no handler", "handler of a logger below"])
def test_messages_go_to_standard_error_without_a_handler(run, configured):
    program = run(LOGGED.replace("CONFIGURED", configured), free_port(), environment={"SHARDWIRE_LOG": "info"})
    code, out, error = program.end()
    assert (code, out) == (0, "")
    line = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z INFO  shardwire run=night member=0 \S.*"
    assert error and all(re.fullmatch(line, one) for one in error.splitlines()), error


def test_messages_on_standard_error_may_be_json(run):
    program = run(LOGGED.replace("CONFIGURED", "os"), free_port(),
                  environment={"SHARDWIRE_LOG": "info", "SHARDWIRE_LOG_FORMAT": "json"})
    code, out, error = program.end()
    assert (code, out) == (0, "")
    objects = [json.loads(line) for line in error.splitlines()]
    assert any(one["message"].startswith("member 0 published 'state'") for one in objects), error
    for one in objects:
        assert list(one) == ["time", "level", "run", "member", "message"]
        assert (one["level"], one["run"], one["member"]) == ("INFO", "night", 0)


@pytest.mark.parametrize("configured", ["os", TO_OUTPUT], ids=["no logging", "handler"])
def test_a_level_that_does_not_exist_is_refused(run, configured):
    program = run(LOGGED.replace("CONFIGURED", configured), free_port(), environment={"SHARDWIRE_LOG": "loud"})
    code, out, error = program.end()
    assert (code, out) == (1, "") and "InvalidArgument: SHARDWIRE_LOG='loud' is not a level" in error, error


def test_a_program_that_logs_neither_hangs_nor_loses_messages(run):
    program = run("""
        import logging, sys
        import shardwire as sw
        logging.basicConfig(stream=sys.stdout, format="%(name)s %(levelname)s %(message)s", level=logging.INFO)
        session = sw.Session.join(rank=0, world_size=1, port=int(sys.argv[1]), log=logging.getLogger("shardwire").log)
        held = sw.Catalog(0, 1)
        held.add_value("", "v", 1)
        first = session.publish(held)
        del first  # retires while this thread holds the interpreter's lock
        second = session.publish(held, step=2)
        """, free_port())
    code, out, error = program.end()
    assert (code, error) == (0, "")
    told = [line for line in out.splitlines() if line.startswith("shardwire INFO member 0 ")]
    assert [line.split()[4] for line in told if "'state'" in line] == ["published", "withdrew"] * 2, out


def test_a_log_that_raises_or_is_slow_stops_nothing(run):
    program = run("""
        import sys, threading, time
        import shardwire as sw

        def log(level, message):
            assert level in (10, 20, 30, 40)
            time.sleep(0.2)
            raise ZeroDivisionError(message)

        threading.excepthook = lambda raised: print(raised.exc_type.__name__, flush=True)
        with sw.Session.join(rank=0, world_size=1, port=int(sys.argv[1]), log=log) as session:
            held = sw.Catalog(0, 1)
            held.add_value("", "v", 1)
            with session.publish(held):
                session.restore(held, timeout=20).wait()
        """, free_port())
    code, out, error = program.end()
    assert (code, error) == (0, "") and set(out.split()) == {"ZeroDivisionError"}


@pytest.mark.parametrize("options", [{"rank": 0}, {"store": object()}, {"rank": 0, "world_size": 1, "nothing": 1},
                                     {"rank": 0, "world_size": 1, "log": logging.getLogger("shardwire")},
                                     {"rank": 0, "world_size": 1, "telemetry": "counter"},
                                     {"rank": 0, "world_size": 1, "join_timeout": -1},
                                     {"rank": 0, "world_size": 1, "transport": "carrier-pigeon"}], ids=str)
def test_wrong_options_are_refused(options):
    with pytest.raises((sw.InvalidArgument, sw.Unsupported, TypeError)):
        sw.Session.join(**options)


def test_the_example_of_the_readme(run):
    import pathlib
    import re

    readme = pathlib.Path(__file__).parents[2] / "README.md"
    [example] = [text for text in re.findall(r"```python\n(.*?)```", readme.read_text(), re.S) if "import numpy" in text]
    port = free_port()
    ranks = [run(example + "\n        print(restored[0, 0], restored[-1, -1])\n",
                 environment={"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                              "MASTER_PORT": "1", "SHARDWIRE_PORT": port}) for rank in range(2)]
    for rank, one in enumerate(ranks):
        code, out, error = one.end()
        assert code == 0, error
        assert out == f"rank {rank}: 524288 bytes from peers, 524288 of its own\n0.0 1.0\n"
        assert out.splitlines()[0] in (readme.parents[1] / "docs/first-restore.md").read_text()
