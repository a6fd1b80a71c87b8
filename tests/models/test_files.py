"""Files that are written whole."""

import os
import signal
import stat

import pytest

from dpmd.models.files import write_text, written_whole


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "table.csv"
    write_text(path, "old\n")

    def fail():
        with written_whole(path) as beside:
            beside.write_text("half of the n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old\n"
    assert os.listdir(tmp_path) == ["table.csv"]


def test_a_kill_leaves_the_old_file_and_no_name_that_patterns_take(tmp_path):
    path = tmp_path / "w.restart.295"
    write_text(path, "old\n")
    child = os.fork()
    if child == 0:
        with written_whole(path) as beside:
            beside.write_text("half of the n")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert path.read_text() == "old\n"
    assert len(os.listdir(tmp_path)) == 2
    assert list(tmp_path.glob("w.restart.*")) == [path]


def test_links_are_followed_and_pipes_written_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    path, link = tmp_path / "elsewhere" / "real.txt", tmp_path / "link.txt"
    path.write_text("old\n")
    link.symlink_to(path)
    write_text(link, "new\n")
    assert link.is_symlink()
    assert path.read_text() == "new\n"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    write_text(tmp_path / "pipe", "to the reader\n")
    assert os.read(reader, 100) == b"to the reader\n"
    os.close(reader)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_errors_name_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        write_text(tmp_path / "nowhere" / "x.txt", "text")
    assert error.value.filename == str(tmp_path / "nowhere" / "x.txt")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_is_told_with_the_name():
    with pytest.raises(OSError, match="No space left") as error:
        write_text("/dev/full", "text")
    assert error.value.filename == "/dev/full"
    assert os.path.exists("/dev/full")
