"""torchtitan's configurations: each setting is applied, refused by its line, or left aside."""

import pytest

from alpa_dejavu.exports import TARGETS, import_plan
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import Offload
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.schedules.schedule_file import schedule_text
from alpa_dejavu.testing import example_cluster

JOB = """\
[job]
description = "ours"

[model]
name = "llama3"
flavor = "8B"

[optimizer]
name = "AdamW"
lr = 3e-4

[training]
local_batch_size = 4
seq_len = 4096

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2

[activation_checkpoint]
mode = "full"

[compile]
enable = true
"""
LLAMA = Transformer(4096, 32, 32, 128256, 4096, kv_heads=8, feed_forward=14336, rotary_base=500_000, rotary_scaling=8.0)
SIZES = Transformer(64, 8, 4, 128, 16, feed_forward=128)


def read(tmp_path, text, devices=8, model=None, name="job.toml"):
    (tmp_path / name).write_text(text)
    return TARGETS["torchtitan"].reader(tmp_path / name, devices, model)


def test_a_job_as_people_write_it(tmp_path):
    foreign = read(tmp_path, JOB)
    assert foreign.outline == Outline(16, 1, "1f1b", 4, 2, (32,), ("layer",), 3)
    assert foreign.model == LLAMA
    assert foreign.ignored == ("line 2: job.description", "line 10: optimizer.lr")
    assert (foreign.priced_by, foreign.otherwise) == ({}, ())


def changed(tmp_path, old, new, devices=8, model=None):
    assert old in JOB
    return read(tmp_path, JOB.replace(old, new), devices, model)


def test_linear_layers_in_eight_bits_are_applied(tmp_path):
    eight = changed(tmp_path, 'flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]').model
    assert (eight.precision, eight.gather) == ("float8", "")
    gathers = "[float8]\nenable_fsdp_float8_all_gather = true\n[training]"
    job = JOB.replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]').replace("[training]", gathers)
    assert read(tmp_path, job).model.gather == "fp8"
    assert changed(tmp_path, 'flavor = "8B"', 'flavor = "8B"\nconverters = "mx"').model.precision == "mxfp8"


def test_layers_that_a_filter_leaves_in_half_precision_are_told(tmp_path):
    job = JOB.replace('flavor = "8B"', 'flavor = "8B"\nconverters = ["float8"]')
    section = '[quantize.linear.float8]\nenable_fsdp_float8_all_gather = true\nprecompute = 1\nfilter_fqns = ["output"'
    head = read(tmp_path, f"{job}{section}]")
    assert (head.model.precision, head.model.gather, head.otherwise) == ("float8", "fp8", ())
    assert head.ignored[2:] == ("line 28: quantize.linear.float8.precompute",)
    (small,) = read(tmp_path, f'{job}{section}, "auto_filter_small_kn"]').otherwise
    assert small.endswith("is priced as if no product of the blocks was too small for 8 bits")
    for name in ("wq", "attention", "layers.31"):
        with pytest.raises(ValueError, match=rf"line 29: .*float8.filter_fqns has {name}, which leaves some"):
            read(tmp_path, f'{job}{section}, "{name}"]')
    with pytest.raises(ValueError, match=r"line 27: float8.filter_fqns is 'wq', but must be a list of names"):
        read(tmp_path, f"{job}[float8]\nfilter_fqns = 'wq'\n")
    assert read(tmp_path, f"{JOB}{section}, 'wq']").model.precision == "bfloat16"  # no converter reads it


def test_settings_of_the_division_are_applied(tmp_path):
    grown = changed(tmp_path, "seq_len = 4096", "global_batch_size = 48")
    assert (grown.outline.batch, grown.outline.num_micro_batches, grown.model.sequence) == (48, 3, 2048)
    copied = changed(tmp_path, "data_parallel_shard_degree = -1", "data_parallel_replicate_degree = 4")
    assert (copied.outline.data_parallel, copied.outline.zero) == (4, 0)
    kept = changed(tmp_path, "tensor_parallel_degree = 2", "fsdp_reshard_after_forward = 'never'")
    assert (kept.outline.data_parallel, kept.outline.zero) == (8, 2)
    assert read(tmp_path, JOB, devices=2).outline.zero == 0
    waiting = changed(tmp_path, TENSOR, f"{TENSOR}\nenable_async_tensor_parallel = true\ncontext_parallel_degree = 2\n"
                      "context_parallel_rotate_method = 'alltoall'")  # fmt: skip
    assert [text.partition(" ")[0].partition(".")[2] for text in waiting.otherwise] == [
        "enable_async_tensor_parallel", "context_parallel_rotate_method",
    ]  # fmt: skip
    hybrid = "data_parallel_replicate_degree = 2\ncontext_parallel_degree = 2\nexpert_parallel_degree = 4"
    parts = changed(tmp_path, "tensor_parallel_degree = 2", hybrid).outline
    assert (parts.data_parallel, parts.degrees) == (
        8, {"context_parallel": 2, "expert_parallel": 4, "expert_tensor": 0, "sharded": 4},
    )  # fmt: skip
    divided = changed(tmp_path, TENSOR, f"{TENSOR}\nexpert_parallel_degree = 8").outline
    assert (divided.expert_parallel, divided.expert_tensor, divided.data_parallel) == (8, 1, 4)
    assert (parts.replicas, parts.num_micro_batches, parts.batch) == (4, 1, 16)
    away = changed(tmp_path, "seq_len = 4096", "enable_cpu_offload = true")
    assert away.outline.offload == Offload(1.0, 1.0, 1.0)
    own = JOB.replace('"8B"', '"ours"').replace("seq_len = 4096", "mixed_precision_param = 'float32'")
    single = read(tmp_path, own, model=SIZES)
    assert (single.model.precision, single.model.sequence) == ("float32", 16)


def test_a_run_without_a_compiler_is_priced_so_and_says_what_its_loss_takes(tmp_path):
    foreign = changed(tmp_path, "enable = true", "enable = false")
    assert foreign.priced_by == {"runtime": "fsdp"}
    (said,) = foreign.otherwise
    assert f"{10 * 4 * 4096 * 128256 / 2 / 2**30:.2f} GiB more" in said
    assert changed(tmp_path, "[compile]\nenable = true", "").otherwise == foreign.otherwise
    (tmp_path / "job.toml").write_text(JOB.replace("= true", "= false").replace('"8B"', '"ours"'))
    plan = import_plan(tmp_path / "job.toml", "torchtitan", example_cluster(1, 8), model=SIZES).result.plan
    assert plan.priced_by.runtime == "fsdp"
    assert plan.notes[0].startswith("compile.enable isn't true")


TENSOR = "tensor_parallel_degree = 2"
PIPELINE = f"pipeline_parallel_degree = 2\n{TENSOR}\n"


@pytest.mark.parametrize(
    ("settings", "blocks", "schedule"),
    [  # where nothing is said, the ends count as a block each
        ("", (16, 16), "1f1b"),
        ("pipeline_parallel_schedule = 'GPipe'", (16, 16), "gpipe"),
        ("pipeline_parallel_schedule = 'Interleaved1F1B'", (8, 9, 8, 7), "interleaved"),
        ("pipeline_parallel_schedule = 'ZBVZeroBubble'", (8, 9, 8, 7), "zb_v"),
        ("pipeline_parallel_last_stage_less_layers = 3", (17, 15), "1f1b"),
        ("pipeline_parallel_split_points = ['layers.20']", (20, 12), "1f1b"),
        ("pipeline_parallel_schedule = 'Interleaved1F1B'\npipeline_parallel_layers_per_stage = 6",
         (5, 6, 6, 6, 5, 4), "interleaved_3"),
    ],
)  # fmt: skip
def test_stages_are_those_that_torchtitan_makes(tmp_path, settings, blocks, schedule):
    outline = changed(tmp_path, TENSOR, PIPELINE + settings).outline
    assert (outline.blocks, outline.schedule) == (blocks, schedule)
    assert (outline.num_micro_batches, outline.data_parallel, outline.zero) == (4, 2, 2)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (TENSOR, "tensor_parallel_degree = 3", "line 17: the degrees' product is 6, but must be"),
        (TENSOR, "context_parallel_degree = true", "context_parallel_degree is True, but must be a whole number"),
        (TENSOR, "expert_parallel_degree = 16", "line 18: .* is 16, but must be a divisor of the 8 devices"),
        (TENSOR, "tensor_paralel_degree = 2", "line 18: .* isn't known.*did you mean"),
        (TENSOR, PIPELINE + "pipeline_parallel_schedule = 'LoopedBFS'", "must be one of 1F1B"),
        (TENSOR, PIPELINE + "module_fqns_per_model_part = [['layers.0']]", "must be stages of all"),
        (TENSOR, PIPELINE + "pipeline_parallel_split_points = ['x']", "must be stages of all 32"),
        (TENSOR, PIPELINE + "pipeline_parallel_layers_per_stage = 6", "can't have 3 stages on each"),
        (TENSOR, PIPELINE + "pipeline_parallel_microbatch_size = 3", "cut into whole micro-batches"),
        ("[parallelism]", "[paralelism]", r"line 16: paralelism isn't known"),
        ("seq_len = 4096", "global_batch_size = 10", "line 13: .* is 10, but must be a multiple of 16"),
        ("seq_len = 4096", "seq_len = 4096.5", "line 14: training.seq_len is 4096.5, but must be a whole number"),
        ("seq_len = 4096", "dtype = 'bfloat16'", "line 14: training.dtype is 'bfloat16', which isn't planned"),
        ('"AdamW"', '"SGD"', "line 9: optimizer.name is 'SGD', but must be Adam or AdamW"),
        ('"8B"', '"9B"', "line 6: the sizes of 'llama3' '9B' aren't known; give --model"),
        ('flavor = "8B"', 'flavor = "8B"\nconverters = ["fp6"]', r"line 7: model.converters is \['fp6'\], but must be"),
        ('flavor = "8B"', 'flavor = "8B"\nconverters = [["float8"]]', "line 7: model.converters is .* must be one of"),
        ('mode = "full"', 'mode = "selective"\nselective_ac_option = "3"', "option is '3', but must be 'op'"),
        ("enable = true", "enable = 1", "line 24: compile.enable is 1, but must be true or false"),
        ("enable = true", "enable = true\ncomponents = ['all']", "line 25: compile.components is .*, but must be"),
        ("[job]", "job = 1\n[jobs]", "line 1: job is outside of all sections"),
        ("[job]", "[job", "this isn't TOML: .*line 1"),
        ("lr = 3e-4", f"lr = {'[' * 5000}", "this isn't TOML: it is too deep"),
        ("lr = 3e-4", f"lr = {'9' * 5000}", "this isn't TOML"),
        ("lr = 3e-4", f"{'a.' * 20}a = 1", "line 10: a name has more than 20 parts"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_by_its_line(tmp_path, old, new, said):
    with pytest.raises(ValueError, match=said):
        changed(tmp_path, old, new)


def written(outline, tmp_path):
    plan = outline.plan(example_cluster(1, outline.num_devices), SIZES)
    for name, text in TARGETS["torchtitan"].writer.write(plan, SIZES).items():
        (tmp_path / name).write_text(text)
    return (tmp_path / "torchtitan_plan.py").read_text()


def test_the_function_that_is_written_is_read_back(tmp_path):
    text = written(Outline(32, 4, "1f1b", 2, 1, (3, 5), ("layer", "layer"), 2), tmp_path)
    outline = Outline(32, 4, "zb_h1", 2, 1, (3, 5), ("layer", "layer"), 2)
    loaded = """pipeline_parallel_schedule_csv=str(pathlib.Path(__file__).with_name("schedule.csv")),"""
    named = "pipeline_parallel_schedule='1F1B',"
    assert named in text
    text = text.replace("from torchtitan", "import pathlib\nfrom torchtitan", 1).replace(named, f"{named} {loaded}")
    (tmp_path / "schedule.csv").write_text(schedule_text(named_schedule("zb_h1", 2, 4)))
    assert read(tmp_path, text, 4, SIZES, "torchtitan_plan.py").outline == outline
    assert "compile=CompileConfig(enable=True)" in text
    foreign = read(tmp_path, text, 4, name="torchtitan_plan.py")
    assert (foreign.outline, foreign.model) == (outline, SIZES)
    assert foreign.otherwise == ("model.attn_backend flex is priced as a fused kernel of sdpa's",)
    with pytest.raises(ValueError, match=r"line \d+: 'llama3' has the sizes of .*, but --model has hidden=4096, nu"):
        read(tmp_path, text, 4, LLAMA, "torchtitan_plan.py")
    (tmp_path / "schedule.csv").write_text("0F0\n1F0\n")
    with pytest.raises(ValueError, match=r"line \d+: .*schedule.csv is none of the schedules zb_h1, v_half, v_min"):
        read(tmp_path, text, 4, SIZES, "torchtitan_plan.py")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("import Trainer\n", "import Trainer\nconfig.x = 1\n", r"line \d+: it may change what is planned; leave it"),
        ("    spec = model_spec()", "    other()", r"line \d+: it may change what is planned"),
        ("hidden_dim=128", "hidden_dim=width(64)", r"line \d+: layers.hidden_dim of .* is 'width', but must be a num"),
        ("hidden_dim=128", "hidden_dim=128, bias=True", r"line \d+: layers.bias of .* is True, but must be None"),
        ("num_embeddings=vocabulary", "num_embeddings=7", r"line \d+: tok_embeddings.num_embeddings of .* is 7, but"),
        ("hidden, vocabulary, heads = 64, 128, 4", "hidden, vocabulary, heads = 64, 128, 3", "has wrong sizes"),
        ("local_batch_size=16", "local_batch_size=len([1])", r"line \d+: 'len\(...\)' is decided as it runs"),
        ("training=TrainingConfig(", "training=mine(", "training isn't made by one of TrainingConfig"),
        ("training=TrainingConfig(", "training=TrainingConfig(*x, ", "it has arguments without names"),
        ("def config()", "def config(", r"line \d+: this isn't Python: "),
        ("return Trainer.Config", "return Own.Config", "config doesn't return a Trainer.Config that is written out"),
        ("-> Trainer.Config", "-> Other", "has no function that returns a Trainer.Config; give the file of one"),
        ("steps=100", f"steps={'-' * 100_000}1", "this isn't Python that is read: it is too deep"),
    ],
)
def test_python_that_decides_more_is_refused(tmp_path, old, new, said):
    text = written(Outline(32, 1, "1f1b", 2, 1, (8,), ("layer",), 2), tmp_path)
    assert old in text
    with pytest.raises(ValueError, match=said):
        read(tmp_path, text.replace(old, new), 2, SIZES, "torchtitan_plan.py")


def test_a_model_that_is_given_has_no_other_sizes_than_the_flavor(tmp_path):
    assert read(tmp_path, JOB, model=LLAMA).model == LLAMA
    with pytest.raises(ValueError, match="line 6: 'llama3' has the sizes of '70B', but --model has hidden=4096, num"):
        changed(tmp_path, '"8B"', '"70B"', model=LLAMA)


def test_a_loss_in_pieces_is_priced_as_a_whole_one_and_told(tmp_path):
    text = written(Outline(32, 1, "1f1b", 2, 1, (8,), ("layer",), 2), tmp_path)
    text = text.replace("loss=CrossEntropyLoss.Config(", "loss=ChunkedLossWrapper.Config(")
    told = "loss ChunkedLossWrapper is priced as if all logits of a micro-batch were there at once"
    assert told in read(tmp_path, text, 2, name="torchtitan_plan.py").otherwise


def test_a_configuration_is_no_longer_than_any_is(tmp_path):
    with pytest.raises(ValueError, match="has 1000331 characters, but must have 1000000 at most"):
        read(tmp_path, JOB + "#" * (1_000_331 - len(JOB)))


def test_what_is_computed_again_is_applied(tmp_path):
    some = changed(tmp_path, 'mode = "full"', "mode = 'selective'\nselective_ac_option = 'op'").outline
    assert some.remat == ("selective",)
    assert [stage.remat for stage in some.plan(example_cluster(1, 8), LLAMA).stages] == ["selective"]
    every = changed(tmp_path, 'mode = "full"', "mode = 'selective'\nselective_ac_option = '1'").outline
    assert every.remat == ("layer",)
    second = changed(tmp_path, 'mode = "full"', "mode = 'selective'\nselective_ac_option = '2'").outline
    assert (second.remat, second.again) == (("layer",), (16,))
    assert changed(tmp_path, '[activation_checkpoint]\nmode = "full"\n', "").outline == second
    none = changed(tmp_path, 'mode = "full"', "mode = 'none'").outline
    assert none.remat == ("none",)


OLD = """\
[model]
name = "llama2"
flavor = "13B"
norm_type = "rmsnorm"

[optimizer]
name = "AdamW"
fused = true

[training]
batch_size = 8
seq_len = 4096
warmup_steps = 200
data_parallel_degree = 4
tensor_parallel_degree = 2
compile = true

[experimental]
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1f1b"
pipeline_parallel_split_points = ["layers.18"]
pipeline_parallel_microbatches = 4

[float8]
enable_float8_linear = true

[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"
"""


def test_a_job_of_2024_has_its_degrees_elsewhere(tmp_path):
    foreign = read(tmp_path, OLD, 16)
    outline = foreign.outline
    assert (outline.batch, outline.num_micro_batches, outline.micro_batch) == (32, 4, 2)
    assert (outline.data_parallel, outline.tensor_parallel, outline.blocks) == (4, 2, (18, 22))
    assert outline.schedule == "1f1b"
    assert (outline.zero, outline.again) == (2, (9, 11))
    assert (foreign.model.num_blocks, foreign.model.hidden, foreign.model.precision) == (40, 5120, "float8")
    assert foreign.priced_by == {}
    assert read(tmp_path, OLD.replace("pipeline_parallel_microbatches = 4\n", ""), 16).outline.num_micro_batches == 2
    with pytest.raises(ValueError, match="line 14: the degrees' product is 32, but must be"):
        read(tmp_path, OLD.replace("data_parallel_degree = 4", "data_parallel_degree = 8"), 16)
    with pytest.raises(ValueError, match=r"line 19: experimental.pipeline_parallel_degree is beside parallelism"):
        read(tmp_path, f"{OLD}[parallelism]\npipeline_parallel_degree = 2\n", 16)
    context = OLD.replace("[experimental]\n", "[experimental]\ncontext_parallel_degree = 2\n")
    assert read(tmp_path, context, 32).outline.context_parallel == 2
    loss = OLD.replace("compile = true", "enable_loss_parallel = false")
    with pytest.raises(ValueError, match=r"line 16: parallelism.enable_loss_parallel is False, which isn't planned"):
        read(tmp_path, loss, 16)


def test_what_is_priced_otherwise_is_told(tmp_path):
    backend = f"{TENSOR}\nexpert_parallel_comm_backend = 'deepep'"
    assert changed(tmp_path, TENSOR, backend).otherwise == ()  # there are no experts
    (told,) = changed(tmp_path, TENSOR, f"{backend}\nexpert_parallel_degree = 4").otherwise
    assert told.endswith("expert_parallel_comm_backend deepep is priced as standard, whose all-to-alls take longer")
    (model,) = changed(tmp_path, "enable = true", 'enable = true\ncomponents = ["model"]').otherwise
    assert model.startswith("compile.components has no loss, so it is priced as the runtime torchtitan")
    assert f"{4 * 4 * 4096 * 128256 / 2 / 2**30:.2f} GiB more" in model
    assert not changed(tmp_path, TENSOR, f"{TENSOR}\nenable_sequence_parallel = false").sequence_parallel
    names = {"8B_flex": 32, "1B": 16, "8B_varlen": 32, "debugmodel": 6}
    for flavor, blocks in names.items():
        assert changed(tmp_path, '"8B"', f'"{flavor}"').model.num_blocks == blocks


DEEPSEEK = """\
[model]
name = "deepseek_v3"
flavor = "671B"
converters = ["quantize.linear.float8", "quantize.grouped_mm.float8"]

[training]
local_batch_size = 16
seq_len = 4096

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
context_parallel_degree = 2
pipeline_parallel_degree = 8
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_layers_per_stage = 4
expert_parallel_degree = 16
expert_tensor_parallel_degree = 1

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = true
components = ["loss"]

[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
filter_fqns = ["output", "router.gate"]

[quantize.grouped_mm.float8]
fqns = ["experts"]
"""


def test_a_job_of_deepseek_as_people_write_it(tmp_path):
    foreign = read(tmp_path, DEEPSEEK, 256)
    outline, model = foreign.outline, foreign.model
    assert (model.precision, model.gather, model.num_blocks, model.latent_rank) == ("float8", "fp8", 61, 512)
    assert outline.degrees == {"context_parallel": 2, "expert_parallel": 16, "expert_tensor": 0, "sharded": 16}
    assert (outline.data_parallel, outline.replicas, outline.zero, outline.schedule) == (32, 16, 2, "interleaved")
    assert (outline.batch, outline.num_micro_batches, sum(outline.blocks), len(outline.blocks)) == (256, 16, 61, 16)
    odd = DEEPSEEK.replace("[quantize.linear.float8]", "[quantize.linear]\nfloat8 = 1")
    assert read(tmp_path, odd, 256).model.gather == ""
    alone = DEEPSEEK.replace(', "quantize.grouped_mm.float8"', "")
    with pytest.raises(ValueError, match=r"line 4: .* leaves experts in half precision.*; add quantize.g"):
        read(tmp_path, alone, 256)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.toml", "# nothing\n", "job.toml is empty, but must have a job's settings"),
        ("job.toml", "[training]\nseq_len = 8192\n", "model.name is missing, but must be there to know the sizes"),
        ("own.py", "from . import model_registry\ndef own() -> Trainer.Config:\n"
         "    return Trainer.Config(model_spec=model_registry('8B'))\n", "'folder', which is the folder's name"),
    ],
)  # fmt: skip
def test_a_job_without_a_known_model_says_so(tmp_path, name, text, said):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=said):
        read(tmp_path / "folder", text, name=name)


def test_gradient_accumulation_beside_a_pipeline_is_told(tmp_path):
    job = JOB.replace(TENSOR, PIPELINE).replace("seq_len = 4096", "global_batch_size = 24")
    with pytest.raises(ValueError, match=r"line 14: .* is 24, but must be 8, .*: gradient accumulation beside a pipe"):
        read(tmp_path, job)
    assert read(tmp_path, job.replace("local_batch_size = 4", "local_batch_size = 12")).outline.num_micro_batches == 12


def test_flavors_have_as_many_parameters_as_they_are_known_for(tmp_path):
    numbers = [read(tmp_path, JOB.replace("8B", flavor)).model.num_parameters for flavor in ("8B", "70B", "405B")]
    assert numbers == [8_030_261_248, 70_553_706_496, 405_853_388_800]
    loss = read(tmp_path, JOB.replace("enable = true", 'enable = true\ncomponents = ["loss"]'))
    assert (loss.priced_by, loss.otherwise) == ({"runtime": "fsdp"}, ())
    experts = JOB.replace("llama3", "qwen3").replace('"8B"', '"30B-A3B"').replace(TENSOR, "expert_parallel_degree = 8")
    assert read(tmp_path, experts).model.num_parameters == 30_532_122_624
    deepseek = read(tmp_path, experts.replace("qwen3", "deepseek_v3").replace("30B-A3B", "671B")).model
    assert (deepseek.latent_rank, deepseek.predicted, deepseek.sequence) == (512, 0, 4096)
