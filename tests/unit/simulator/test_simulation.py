"""What the processes of a predicted command tell of themselves."""

import sys
import time

from memlab.simulator.simulation import VARIABLE, Node, Simulation, lines_where_time_ended


def test_a_process_tells_the_line_of_its_script_where_its_time_ended(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    code = compile("import json\njson.loads('[1]', object_hook=print, parse_int=wait)", "/home/me/train.py", "exec")
    Simulation(Node("h200", 1, 1 << 30), None, time.time() - 9.9, timeout_s=10.0).tell_where_time_ends()
    exec(code, {"wait": lambda text: time.sleep(0.5)})
    here = __file__ + f":{sys._getframe().f_lineno - 1}"
    assert lines_where_time_ended(tmp_path) == [here]  # the innermost line, not of Python's own modules


def test_frames_of_packages_of_python_and_of_threads_are_passed_over(tmp_path):
    (tmp_path / "7.stack").write_text(
        "Timeout (0:00:10)!\n"
        'Thread 0x1 (most recent call first):\n  File "/home/me/other.py", line 3 in wait\n\n'
        "Thread 0x2 (most recent call first):\n"
        '  File "/usr/lib/python3.11/selectors.py", line 415 in select\n'
        '  File "/home/me/site-packages/uvicorn/server.py", line 8 in run\n'
        '  File "/home/me/serve.py", line 12 in main\n  File "/home/me/serve.py", line 20 in <module>\n'
    )
    (tmp_path / "8.stack").write_text("")
    (tmp_path / "9.stack").write_text(
        'Thread 0x2 (most recent call first):\n  File "<frozen runpy>", line 88 in _run\n'
    )
    assert lines_where_time_ended(tmp_path) == ["/home/me/serve.py:12", "<frozen runpy>:88"]
