import pytest

from mainstem.core.config import BadSetting
from mainstem.process.project_config import load_job_configs, project_name


def test_settings_of_jobs_are_read_without_the_code(tmp_path):
    """A driver that is started again has its own code; what somebody is typing meanwhile must not stop it."""
    (tmp_path / "mainstem.toml").write_text('[jobs.enriched]\nevery = "5 seconds"\n')
    (tmp_path / "jobs.py").write_text("def enriched(")
    assert load_job_configs(tmp_path)["enriched"].every == "5 seconds"


def test_the_environment_wins_over_the_file(tmp_path):
    (tmp_path / "mainstem.toml").write_text('[jobs.enriched]\nevery = "5 seconds"\n')
    found = load_job_configs(tmp_path, environment={"MAINSTEM_JOBS__ENRICHED__EVERY": "3 seconds"})
    assert found["enriched"].every == "3 seconds"


def test_a_project_without_a_name_is_called_as_its_directory(tmp_path):
    assert project_name(tmp_path) == tmp_path.name  # there are no settings
    (tmp_path / "mainstem.toml").write_text("[topics.weather]\n")
    assert project_name(tmp_path) == tmp_path.name
    (tmp_path / "mainstem.toml").write_text("[project]\nname = 'shop'\n")
    assert project_name(tmp_path) == "shop"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("[project]\njob = 'jobs.py'", "unknown field `job`"),
        ("[topics.weather]\npartitons = 2", "unknown field `partitons`"),
        ("[jobs.enriched]\nmax_offsets = 1", "[jobs.enriched]: Object contains unknown field `max_offsets`"),
        (
            "[jobs.enriched]\nversion = '2/3'",
            "[jobs.enriched]: expected letters, digits, '.', '_' and '-' in a version",
        ),
        ("[jobs.enriched]\nevery = 'often'", "[jobs.enriched]: expected a number and a unit"),
        ("[[topics]]", "topics: expected tables"),
        ("[topics.'a b']", "[topics.a b]: expected letters"),
        ("[topics.a]\npartitions = -1", "[topics.a]: partitions: expected `int` >= 0, found -1"),
        ("not toml", "not valid TOML"),
    ],
)
def test_a_wrong_setting_names_the_setting_and_the_file(tmp_path, settings, message):
    (tmp_path / "mainstem.toml").write_text(settings)
    with pytest.raises(BadSetting) as caught:
        load_job_configs(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / "mainstem.toml") in str(caught.value)


def test_a_directory_without_settings_is_no_project(tmp_path):
    with pytest.raises(BadSetting, match="no such file"):
        load_job_configs(tmp_path)
