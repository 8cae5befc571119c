"""Jobs and lost hosts from CSV files in the columns of Alibaba's traces."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.playground.jobs import HostChange, Pool, StepCurve, Workload, policy, schedule
from alpa_dejavu.playground.jobs.trace import drawn_hosts, drawn_jobs, read_host_changes, read_jobs

CURVE = StepCurve({1: 1.0, 2: 0.5, 4: 0.25})
LINES = (
    "one,worker,2,Terminated,100,150,600,10,100,V100",
    "one,ps,1,Terminated,90,160,400,30,,",
    "two,worker,1,Terminated,105,115,100,2.5,50,MISC",
    "lost,worker,1,Failed,100,110,100,1,100,V100",
    "plain,ps,1,Terminated,100,110,100,1,0,",
)


def written(tmp_path, *lines):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(lines))
    return path


def test_jobs_by_hand(tmp_path):
    trace = read_jobs(written(tmp_path, *LINES), [CURVE], storage_factor=2.0, checkpoint_s=5.0)
    assert trace.left_out == {"not terminated": 1, "without a device": 1}
    one, two = trace.jobs
    # Two workers of 6 cores and a server of 4; 70 seconds at half a second a step.
    assert (one.name, one.arrival_s, one.devices, one.steps, one.checkpoint_steps) == ("one", 0.0, 2, 140.0, 10.0)
    assert (one.curve.core_s, one.curve.data_bytes, one.curve.uncached_s) == (8.0, 50 * 2**30, 1.0)
    assert (two.arrival_s, two.devices, two.steps) == (15.0, 1, 10.0)
    # With all that it asked for it takes as long as it took.
    pool = Pool(1, 4, 64, 2**40)
    assert schedule(Workload(trace.jobs, pool), policy("fifo")).completion_s.tolist() == [70.0, 10.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("one,worker,2", "line 2: it has 3 cells, but must have 10; a line has job_name, task_name"),
        ("x,w,1,Terminated,1,2,soon,1,100,V", "line 2: plan_cpu is 'soon', but must be a finite number of at least 0"),
        ("x,w,1,Terminated,1,2,nan,1,100,V", "line 2: plan_cpu is 'nan'"),
        ("x,w,-1,Terminated,1,2,1,1,100,V", "line 2: inst_num is '-1'"),
        ("x,w,1,Terminated,9,2,1,1,100,V", "line 2: end_time is '2', but must be a finite number of at least 9"),
        ("x,w,1,Terminated,,2,1,1,100,V", "line 2: start_time is '', but must not be empty"),
        ("x,w,1,Terminatd,1,2,1,1,100,V", "line 2: status is 'Terminatd', but must be one of Terminated, Running"),
        (",w,1,Terminated,1,2,1,1,100,V", "line 2: job_name is ''"),
    ],
)
def test_broken_lines_are_told_with_the_remedy(tmp_path, line, said):
    with pytest.raises(ValueError, match=f"trace.csv, {re.escape(said)}.*mend the line, or leave it out"):
        read_jobs(written(tmp_path, LINES[0], line), [CURVE])


def test_files_without_jobs_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"no job that can be run .it has no line"):
        read_jobs(written(tmp_path), [CURVE])
    with pytest.raises(ValueError, match="1 not terminated"):
        read_jobs(written(tmp_path, LINES[3]), [CURVE])
    with pytest.raises(ValueError, match="can't be read"):
        read_jobs(tmp_path / "none.csv", [CURVE])


def test_hosts_are_lost_and_come_back(tmp_path):
    lines = ("a,10,1,x,64,100,USING", "b,10,1,x,64,100,USING", "a,30,1,x,64,100,REPAIR", "c,11,1,x,64,100,OFFLINE",
             "a,50,1,x,64,100,USING", "b,20,1,x,64,100,USING")  # fmt: skip
    changes = read_host_changes(written(tmp_path, *lines), 2)
    assert changes == (HostChange(20, 0, False), HostChange(40, 0, True))
    with pytest.raises(ValueError, match="line 1: time_stamp is 'then'"):
        read_host_changes(written(tmp_path, "a,then,1,x,64,100,USING"), 2)


def test_drawn_traces_are_in_the_columns_and_the_same_again(tmp_path):
    text = drawn_jobs(5, 400, 20.0)
    assert text == drawn_jobs(5, 400, 20.0) != drawn_jobs(6, 400, 20.0)
    assert text.startswith("job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type")
    jobs = read_jobs(written(tmp_path, text), [CURVE]).jobs
    assert len(jobs) == 400
    # Poisson arrivals: the gaps' mean and standard deviation are alike, within three standard errors.
    gaps = np.diff([job.arrival_s for job in jobs])
    assert abs(gaps.mean() - 20) < 3 * 20 / 20
    assert abs(gaps.std() - 20) < 3 * 20 * 2 / 20
    hosts = drawn_hosts(5, 3, 1e4, 1e-3, 100.0)
    assert hosts.startswith("machine_id,time_stamp,failure_domain_1,failure_domain_2,cpu_num,mem_size,status\n")
    changes = read_host_changes(written(tmp_path, hosts), 3)
    assert all(not change.present for change in changes if change.at_s == min(c.at_s for c in changes))
    for host in range(3):
        own = [change.present for change in changes if change.host == host]
        assert own == [bool(n % 2) for n in range(len(own))]
        assert len(own) >= 2


def test_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("alpa_dejavu.playground.jobs.planned_curve", lambda *_, **__: CURVE)
    path = str(tmp_path / "drawn.csv")
    assert command("draw-jobs", path, "--jobs", 8).output == f"wrote {path}\n"
    asked = "jobs", path, "--cluster", "p3.16xlarge", "--cores", 64, "--memory-gib", 488, "--model", "gpt-350m"
    said = command(*asked).output
    assert "8 jobs on 1 hosts of 8 devices" in said
    assert all(name in said for name in ("fifo", "equal-shares", "sensitivity"))
    written(tmp_path, "one,two").rename(path)
    wrong = command(*asked)
    assert wrong.exit_code == 1
    assert "drawn.csv, line 1: it has 2 cells" in wrong.output


def command(*words):
    return CliRunner().invoke(main, ["playground", *map(str, words)])
