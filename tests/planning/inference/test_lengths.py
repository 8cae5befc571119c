"""Lengths of requests: means and percentiles by hand, and files that aren't as they must be."""
from alpa_dejavu.planning.inference import Lengths


def test_alike_requests_have_one_length():
    lengths = Lengths.fixed(512, 128)
    assert (lengths.prompt, lengths.output, lengths.high_prompt, lengths.high_total) == (512, 128, 512, 640)
    assert lengths.context == 512 + 64


def test_without_weights_each_line_counts_once(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("output,prompt\n" + "8,64\n" * 19 + "8,4096\n")
    assert Lengths.read(path).high_prompt == 64
