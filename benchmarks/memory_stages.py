"""Memory of one fresh process after each stage of a training, as JSON; for process_memory.py.

It imports nothing before the stage that is measured, but `sys`, which Python has loaded.
"""

import sys

STATUS = "/proc/self/status"
FIELDS = {"VmRSS": "resident", "RssAnon": "heap", "RssFile": "files", "VmHWM": "peak"}


class Stages(dict):
    """The memory of this process at the end of each stage, MiB."""

    def add(self, stage: str) -> None:
        with open(STATUS) as file:
            lines = dict(line.split(":", 1) for line in file)
        memory = {name: int(lines[field].split()[0]) / 1024 for field, name in FIELDS.items()}
        self[stage] = {**memory, "arrays": array_memory()}


def array_memory() -> float:
    """All arrays of JAX, MiB."""
    if "jax" not in sys.modules:
        return 0.0
    return sum(array.nbytes for array in sys.modules["jax"].live_arrays()) / 2**20


def main() -> None:
    env, settings, iterations = sys.argv[1:]
    stages = Stages()
    stages.add("Python")
    import jax

    stages.add("import jax")
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
    stages.add("first computation")
    import jaxrl

    stages.add("import jaxrl")
    import json

    from jaxrl.core import machine
    from jaxrl.run.devices.compiled import peak_of

    config = jaxrl.PPOConfig.tuned(env, **json.loads(settings))
    trainer = jaxrl.Trainer(config, run_dir=None, quiet=True)
    stages.add("environment and configuration")
    trainer.result_names()
    stages.add("tracing")
    give_back = machine.give_back_memory

    def measured_giving_back() -> None:  # `compile` calls it when the compiler is done
        stages.add("compiling")
        give_back()

    machine.give_back_memory = measured_giving_back
    trainer.executable.compile(start=True)
    machine.give_back_memory = give_back
    stages.add("memory given back")
    trainer.train()
    stages.add("first chunk")
    trainer.fit(stop={"training_iteration": int(iterations)})
    stages.add("all iterations")
    planned = peak_of(trainer.executable.chunk_program)
    print(json.dumps({"stages": stages, "planned": planned and planned / 2**20}))


if __name__ == "__main__":
    main()
