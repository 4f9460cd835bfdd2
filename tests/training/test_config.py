"""Settings: preset < file < key=value, every value checked, and an unknown key named with its nearest."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from paretune.errors import InputError
from paretune.training.config import TrainConfig, build, resolve


@dataclass(frozen=True)
class Inner:
    """Nested settings."""

    width: int = 8
    norm: bool = False


@dataclass(frozen=True)
class Config(TrainConfig):
    """A method's settings."""

    preset: str = "plain"
    name: str = "n"
    inner: Inner = field(default_factory=Inner)


PRESETS = {"plain": {}, "big": {"lr": 0.5, "epochs": 7, "inner": {"width": 99, "norm": True}}}


def settle(*settings, file=None):
    return resolve(Config, presets=PRESETS, default_preset="plain", file=file, settings=settings)


# --- where values come from ---------------------------------------------------------------------------------------


def test_defaults():
    assert settle() == Config()


def test_settings_go_before_the_file_and_the_file_before_the_preset(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("preset: big\nepochs: 3\nbatch_size: 5\ninner:\n  width: 50\n")
    config = settle("batch_size=6", file=file)
    assert (config.preset, config.lr, config.epochs, config.batch_size) == ("big", 0.5, 3, 6)
    assert config.inner == Inner(50, True)  # the file's mapping merges into the preset's
    assert settle("inner.norm=false", file=file).inner == Inner(50, False)
    assert settle("preset=plain", file=file).lr == TrainConfig().lr


def test_the_last_setting_of_a_key_counts():
    assert settle("lr=0.1", "lr=0.2").lr == 0.2


def test_the_presets_themselves_are_never_changed():
    settle("preset=big", "inner.width=1")
    assert PRESETS["big"]["inner"] == {"width": 99, "norm": True}


def test_an_empty_file_sets_nothing(tmp_path):
    (tmp_path / "c.yaml").write_text("# nothing\n")
    assert settle(file=tmp_path / "c.yaml") == Config()


# --- types --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["1e-5", "1.0e-5", "0.00001", " 1e-5"])
def test_numbers_in_exponent_form(text, tmp_path):
    assert settle(f"lr={text}").lr == 1e-5
    (tmp_path / "c.yaml").write_text(f"lr: {text}\n")  # YAML reads 1e-5 as text
    assert settle(file=tmp_path / "c.yaml").lr == 1e-5


def test_values_of_each_type():
    config = settle(
        "epochs=3.0", "lr=1", "gradient_checkpointing=true", "betas=[0.9, 0.99]", "name=a=b", "schedule=linear"
    )
    assert (config.epochs, config.lr, config.gradient_checkpointing) == (3, 1.0, True)
    assert isinstance(config.epochs, int) and isinstance(config.lr, float)
    assert (config.betas, config.name, config.schedule) == ((0.9, 0.99), "a=b", "linear")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epochs=2.5", "field 'epochs': must be a whole number, found 2.5"),
        ("epochs=two", "field 'epochs': must be a whole number, found 'two'"),
        ("epochs=true", "must be a whole number, found True"),
        ("epochs=", "must be a whole number, found None"),
        ("lr=fast", "field 'lr': must be a number, found 'fast'"),
        ("lr=false", "must be a number"),
        ("lr=[1]", "must be a number"),
        ("gradient_checkpointing=1", "must be true or false, found 1"),
        ("gradient_checkpointing=maybe", "must be true or false"),
        ("betas=0.9", "must be a list of 2 numbers, found 0.9"),
        ("betas=[0.9]", "must be a list of 2 numbers"),
        ("betas=[0.9, high]", "must be a number, found 'high'"),
        ("name=3", "must be text, found 3"),
        ("inner=3", "must be a mapping of settings, found 3"),
        ("schedule=cosin", "'cosin' is not allowed. Did you mean 'cosine'"),
        ("inner.width=wide", "field 'inner.width': must be a whole number"),
        ("lr.x=1", "must be a number"),
    ],
)
def test_values_of_the_wrong_type(setting, message):
    with pytest.raises(InputError, match=message.replace("[", r"\[")):
        settle(setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epoch=1", "unknown setting 'epoch'. Did you mean 'epochs'"),
        ("inner.widht=1", "unknown setting 'inner.widht'. Did you mean 'inner.width'"),
        ("qqq=1", "unknown setting 'qqq'. Known: .*batch_size"),
        ("preset=bigg", "unknown preset 'bigg'. Did you mean 'big'"),
        ("preset=[1]", "unknown preset"),
        ("lr", "written key=value, found 'lr'"),
        ("=1", "unknown setting ''"),
    ],
)
def test_unknown_names(setting, message):
    with pytest.raises(InputError, match=message):
        settle(setting)


@pytest.mark.parametrize(
    "setting",
    [
        "epochs=0", "batch_size=0", "micro_tokens=0", "max_length=-1", "lr=0", "lr=-1", "lr=.inf", "lr=.nan", "clip=0",
        "lora_r=0", "lora_alpha=0", "lr_head=-1", "warmup_steps=-1", "weight_decay=-0.1", "weight_decay=.nan",
        "lora_layers=-1", "lora_dropout=1", "lora_dropout=-0.1", "validation=1", "test=-0.1", "betas=[1, 0.9]",
        "betas=[0.9, -0.1]",
    ],
)  # fmt: skip
def test_values_out_of_range_name_their_field(setting):
    with pytest.raises(InputError, match=f"field '{setting.partition('=')[0]}'"):
        settle(setting)


def test_validation_and_test_must_leave_something():
    with pytest.raises(InputError, match="leave nothing to train on"):
        settle("validation=0.5", "test=0.5")


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr: [1", "is not YAML"),
        ("- lr", "must hold a mapping"),
        ("just text", "must hold a mapping"),
        ("epochss: 3", "Did you mean 'epochs'"),
        ("inner: [3]", "must be a mapping"),
    ],
)
def test_broken_files_are_named(tmp_path, text, message):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(InputError, match=f"c.yaml.*{message}"):
        settle(file=tmp_path / "c.yaml")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"gone.yaml: no such config file"):
        settle(file=tmp_path / "gone.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        settle(file=tmp_path)
    (tmp_path / "c.yaml").write_bytes(b"lr: \xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        settle(file=tmp_path / "c.yaml")


def test_a_file_runs_nothing(tmp_path):
    (tmp_path / "c.yaml").write_text(f"lr: !!python/object/apply:os.mkdir ['{tmp_path / 'ran'}']\n")
    with pytest.raises(InputError, match="is not YAML"):
        settle(file=tmp_path / "c.yaml")
    assert not (tmp_path / "ran").exists()


def test_the_resolved_config_builds_itself_again():
    config = settle("preset=big", "betas=[0.5, 0.6]")
    assert build(Config, config.to_dict()) == config
