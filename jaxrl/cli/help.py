"""Help pages of the commands, grouped as the documentation is, and completion for shells."""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence

from jaxrl.cli.flags import HELP_FLAGS, Flag, shown
from jaxrl.core.errors import UsageError, unknown_name
from jaxrl.core.registry import names
from jaxrl.core.words import flag_name

GROUPS = {  # title: the settings under it; docs/settings.md has the same groups
    "environment": "algorithm input env env_args tuned rllib_config ignore curriculum env_task_fn "
    "env_task_interval observation_space action_space serve",
    "policies": "policies policies_to_train per_policy agent_id_obs critic_observation init_from "
    "opponents",
    "trials": "grid random num_samples seeds metric halving batch_size",
    "population": "pbt perturbation_interval hyperparam_mutations quantile_fraction "
    "resample_probability perturbation_factors burn_in_period",
    "sizes": "total_env_steps num_envs rollout_length train_batch_size minibatch_size num_epochs "
    "shuffle_blocks seed",
    "stopping": "stop stop_return",
    "loss": "lr gamma lambda_ clip_param vf_clip_param value_clip vf_loss_coeff entropy_coeff "
    "use_kl_loss kl_coeff kl_target normalize_advantages normalize_returns center_values dual_clip "
    "target_kl intrinsic_reward_coeff normalize_intrinsic_rewards beta vf_coeff "
    "moving_average_sqd_adv_norm_update_rate",
    "optimizer": "optimizer adam_epsilon grad_clip",
    "observations and actions": "ignore_observations observation_filter normalize_images "
    "action_distribution normalize_actions clip_actions free_log_std explore exploration_config",
    "network": "model fcnet_hiddens fcnet_activation fcnet_kernel_initializer vf_share_layers "
    "head_fcnet_hiddens conv_filters conv_activation conv_channels",
    "memory": "use_lstm use_gru lstm_cell_size lstm_use_prev_action lstm_use_prev_reward "
    "max_seq_len use_attention attention_num_transformer_units attention_dim attention_num_heads "
    "attention_head_dim attention_memory_inference attention_position_wise_mlp_dim "
    "attention_init_gru_gate_bias",
    "episodes": "callbacks sampling_interval sampling_duration output "
    "output_share "
    "metrics_num_episodes_for_smoothing",
    "runs, checkpoints and resume": "run_dir resume strict trust checkpoint_interval_s "
    "checkpoint_frequency checkpoint_at_end checkpoint_score_attribute keep",
    "environments outside JAX": "workers sync env_step_timeout_s max_consecutive_faults",
    "evaluation": "evaluation_interval evaluation_duration evaluation_explore evaluation_env_args "
    "evaluation_seed evaluation_max_steps",
    "logs and pictures": "loggers pictures debug profile",
    "devices and processes": "devices compile_cache coordinator num_processes process_id "
    "join_seconds",
}
MOST_USED = (
    "grid random seeds algorithm input env env_args policies total_env_steps stop_return seed "
    "num_envs minibatch_size lr fcnet_hiddens run_dir resume evaluation_interval callbacks devices"
)
FEW = 16  # a command with no more flags than this shows all of them
WIDTH = 88  # columns
FILES = ("run_dir", "resume", "rllib_config", "out", "output", "init_from")
SHELLS = ("bash", "zsh", "tcsh")


def show_help(argv: Sequence[str], flags: Mapping[str, Flag], prog: str, description: str) -> None:
    """Prints the flags with their defaults and ends the process, if `argv` asks for that.

    `--help` shows the most used ones, on one screen, `--help-all` all of them.
    """
    if not set(HELP_FLAGS) & set(argv):
        return
    few = "--help-all" not in argv and len(flags) > FEW
    parser = help_parser(_most_used(flags) if few else flags, grouped=len(flags) > FEW and not few)
    parser.prog, parser.usage, parser.description = prog, f"{prog} [flags]", description
    if few:
        parser.epilog = f"--help-all explains all {len(flags)} flags."
    parser.print_help()
    sys.exit(0)


def help_parser(flags: Mapping[str, Flag], *, grouped: bool) -> argparse.ArgumentParser:
    """A parser that is only printed or completed from: every flag under its group's title."""
    parser = argparse.ArgumentParser(
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(
            prog, max_help_position=28, width=WIDTH
        ),
    )
    for title, members in groups_of(flags).items() if grouped else [("flags", list(flags))]:
        group = parser.add_argument_group(title)
        for name in members:
            default, metavar = shown(flags[name].default) or "none", flags[name].form.metavar
            group.add_argument(
                flag_name(name),
                metavar=f"{metavar} ..." if metavar else "VALUE",
                help=f"{flags[name].help} (default: {default})".replace("%", "%%"),
            )
    return parser


def groups_of(flags: Collection[str]) -> dict[str, list[str]]:
    """The names of flags by the title of their group; the rest, of algorithms not ours, last."""
    by_title = {
        title: [name for name in members.split() if name in flags]
        for title, members in GROUPS.items()
    }
    placed = {name for members in by_title.values() for name in members}
    by_title["flags"] = [name for name in flags if name not in placed]
    return {title: members for title, members in by_title.items() if members}


def completion(shell: str, commands: Mapping[str, tuple[str, Mapping[str, Flag]]]) -> str:
    """The script by which a shell completes `jaxrl`, its commands and their flags.

    Args:
        shell: one of `SHELLS`.
        commands: {name: (what it does, its flags)}.

    Raises:
        UsageError: another shell, or shtab is not installed.
    """
    if shell not in SHELLS:
        raise unknown_name("shell", shell, SHELLS)
    try:
        import shtab
    except ImportError:
        raise UsageError(
            'completion needs shtab, which is not installed: pip install "jaxrl[completion]"'
        ) from None
    parser = argparse.ArgumentParser("jaxrl")
    parser.add_argument("--version", action="store_true")
    chosen = parser.add_subparsers(dest="command")
    for name, (description, flags) in commands.items():
        command = chosen.add_parser(
            name, parents=[help_parser(flags, grouped=False)], help=description
        )
        command.add_argument("--help-all", action="store_true")
        if "resume" not in flags:  # these take a run's folder
            command.add_argument("run", nargs="*").complete = shtab.DIRECTORY
        for action in command._actions:
            if action.dest in FILES:
                action.complete = shtab.FILE
            if action.dest == "env":
                action.choices = names()
    return shtab.complete(parser, shell)


def _most_used(flags: Mapping[str, Flag]) -> dict[str, Flag]:
    return {name: flags[name] for name in MOST_USED.split() if name in flags}
