from envs.pursuit_rules import *
