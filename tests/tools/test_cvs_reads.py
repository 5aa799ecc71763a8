"""The keys of a configuration that CVS reads, found in a repository of our own, written as CVS's is."""

from __future__ import annotations

from pathlib import Path

from tools import cvs_reads

from tests.tools.test_key_versions import _Repository

LIBRARY = """
class Job:
    def __init__(self, training_config_dict, model_params_dict, model, gpu, distributed_training=True):
        self.distributed_training = distributed_training
        self.settings = training_config_dict
        self.model_params_dict = model_params_dict
        self.settings.setdefault("color", "red")
        self.color = self.settings["color"]
        self.count = int(self.settings["count"])
        self.port = training_config_dict.get("outer", {}).get("port", "1")
        if not self.distributed_training:
            cell = self.model_params_dict["single_node"][model][gpu]
        else:
            cell = self.model_params_dict["multi_node"][model][gpu]
        self.cell = cell
        flags = self.cell["flags"]
        self.flag = f"--level={flags['level']} --width={flags['width']}"
        if self.count < 1:
            raise ValueError(f"got: {self.color}")

    def command(self):
        if self.distributed_training is True:
            return f"export COLOR={self.color}; export CARD={self.settings['card']}; MBS={self.cell['micro']} "
        return f"steps: {self.count}"
"""
TEST = 'def test(training_dict):\n    open(training_dict["token"]); float(training_dict["goal"]["speed"])\n'
EXPECTED = {
    "config.card needed-across any CARD=",
    "config.color default any COLOR=",
    "config.count needed int steps:",
    "config.goal.speed needed float -",
    "config.outer.port default any -",
    "config.token needed any -",
    "flags.level needed any --level=",
    "flags.width needed any --width=",
    "micro needed-across any MBS=",
}


def test_the_keys_that_code_reads(tmp_path: Path) -> None:
    repository = _Repository(tmp_path / "cvs")
    first, second = (
        {path: text for (_, year), paths in cvs_reads.SOURCES.items() if year == release
         for path, text in zip(paths, (LIBRARY, TEST), strict=True)}
        for release in cvs_reads.RELEASES
    )  # fmt: skip
    repository.commit(first, tag="old")
    changed = {path: text.replace("'card'", "'nic'") for path, text in second.items()}
    repository.commit(changed)
    found = list(cvs_reads.rows(repository.path, {"2025": "old", "2026": "HEAD"}))
    for kind in ("jax", "megatron"):
        of_kind = {line.removeprefix(f"2025 {kind} ") for line in found if line.startswith(f"2025 {kind} ")}
        assert of_kind == EXPECTED
        assert f"2026 {kind} config.nic needed-across any CARD=" in found
        assert f"2026 {kind} config.card needed-across any CARD=" not in found
