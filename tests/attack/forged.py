"""Runs whose files say what a stranger wants them to say."""

import json
import shutil

from jaxrl.run.storage import checkpoint


def forged(path, target, without=(), **changes):
    """A copy of a run whose files say otherwise, digests made again.

    Of `config` only what is named changes; `without` are settings that it does not have.
    """
    config_of = lambda saved: {
        name: value
        for name, value in {**saved, **changes.get("config", {})}.items()
        if name not in without
    }
    shutil.copytree(path, target)
    for file in [*target.rglob(checkpoint.FACTS), target / "metadata.json"]:
        facts = json.loads(file.read_text())
        facts.pop("digest", None)
        facts.update({name: value for name, value in changes.items() if name != "config"})
        if file.name == checkpoint.FACTS:
            facts["config"] = config_of(facts["config"])
            facts["digest"] = checkpoint._digest(facts)
        file.write_text(json.dumps(facts))
    config = target / "config.json"
    if config.exists():
        config.write_text(json.dumps(config_of(json.loads(config.read_text()))))
    return target
